"""Whether a pretrained model finds values that are hidden in a long text (after RULER, Hsieh et al. 2024)."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from evalkit.checks import above, at_least, at_least_or_null
from evalkit.core.contracts import AnyTask, Evaluation, Pretrained, Trained
from evalkit.core.rows import Row
from evalkit.evaluations.needle.rows import ALL, FOUND, METRICS, share_found
from evalkit.inference.generation import decode
from evalkit.inference.prefill import bucket, by_length, placed, prefill, rows_within
from evalkit.inference.texts import ends_of
from evalkit.tasks.needle import Hidden, Needle
from evalkit.tasks.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Needles(Evaluation):
    """Prompts of `task=needle` at each of `lengths` and `depths`, `prompts` of each.

    The model reads the prompt and generates up to `new_tokens` greedily, to the end of the line. Raises ValueError for
    an invalid value.

    Options:
      lengths (tokens): tokens of the prompt, with the tokenizer's beginning-of-text token; one measurement each.
      depths (share of the text): where the answers stand, from 0 to 1; one measurement each; `[]`: anywhere.
      prompts (prompts): prompts of each length and depth.
      new_tokens (tokens): tokens that the model generates, at most; null: 1.5 times those of the longest answer.
      batch_size (prompts): prompts that are in memory at a time.
      chunk (tokens): tokens of each prompt that are in memory at a time.
      cache_gib (GiB): where caches would take more, fewer prompts are read at a time, down to one per device.
    """

    kind = "evalkit.evaluations.needle.report"

    lengths: list[int]
    depths: list[float] = field(default_factory=lambda: [0.0, 0.25, 0.5, 0.75, 1.0])
    prompts: int = 20
    new_tokens: int | None = None
    batch_size: int = 8
    chunk: int = 512
    cache_gib: float = 4.0

    def __post_init__(self) -> None:
        above(self, 0, "cache_gib")
        at_least(self, 1, "prompts", "batch_size", "chunk")
        at_least_or_null(self, 1, "new_tokens")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths={list(self.lengths)}; allowed: one length or more, each at least 1")
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise ValueError(f"depths={list(self.depths)}; allowed: numbers from 0 to 1, or [] for anywhere")

    @property
    def pieces(self) -> int:
        """The number of lengths."""
        return len(set(self.lengths))

    def check(self, task: AnyTask) -> None:
        """Raises ValueError for a task without needles in text, or with a depth of its own."""
        if not isinstance(task, Needle):
            raise ValueError("eval=needle needs needles in text; give task=needle checkpoint=FOLDER")
        if task.depth is not None:
            raise ValueError(f"task.depth={task.depth}, but needles are measured at eval.depths; give eval.depths")
        task.example(1, 0)  # so that a file that cannot be read is reported before weights are loaded

    def held(self) -> list[tuple[str, int, int]]:
        """One prompt of the longest length; how many are read together depends on the checkpoint."""
        return [("lengths", 1, max(self.lengths))]

    def kept(self, rows: Sequence[Row]) -> int:
        """How many rows belong to finished lengths; every length has the same number of rows."""
        of_a_length = len(self._depths) * len(METRICS)
        return len(rows) // of_a_length * of_a_length

    def check_tokens(self, task: AnyTask, tokenizer: Tokenizer) -> None:
        """Raises ValueError for a length that is too short for any needle."""
        assert isinstance(task, Needle)
        self._sizes(task, tokenizer)

    @property
    def _depths(self) -> list[float | None]:
        """Each depth once, the beginning first."""
        return [*sorted({float(depth) for depth in self.depths})] or [None]

    def _sizes(self, task: Needle, tokenizer: Tokenizer) -> dict[int, int]:
        """The sentences of the text by length, the shortest first."""

        def count(text: str) -> int:
            return len(tokenizer.encode(text)) + (tokenizer.bos is not None)

        return {length: task.sentences_for(length, count) for length in sorted(set(self.lengths))}

    def run(self, trained: Trained) -> Iterator[Row]:
        """Rows of each length that `trained.kept` has not, each metric at each depth."""
        task = trained.task
        assert isinstance(task, Needle)
        done = {row["length"] for row in trained.kept}
        pretrained = placed(trained.pretrained(), self.batch_size)
        for length, sentences in self._sizes(task, pretrained.tokenizer).items():
            if length in done:
                continue
            at_depths = [replace(task, depth=depth) for depth in self._depths]
            asked = [one.example(sentences, index) for one in at_depths for index in range(self.prompts)]
            prompts, replies = self._replies(trained, pretrained, length, asked)
            share = np.asarray([share_found(reply, each.answers) for reply, each in zip(replies, asked, strict=True)])
            scores = {FOUND: share, ALL: np.floor(share)}
            for place, depth in enumerate(self._depths):
                own = slice(place * self.prompts, (place + 1) * self.prompts)
                for metric in METRICS:
                    yield trained.make_row(
                        metric=metric,
                        split="test",
                        length=length,
                        total=float(scores[metric][own].sum()),
                        count=self.prompts,
                        extra={
                            "depth": depth,
                            "sentences": sentences,
                            "prompt_tokens": round(float(prompts[own].mean()), 1),
                        },
                    )

    def _replies(
        self, trained: Trained, pretrained: Pretrained, length: int, asked: Sequence[Hidden]
    ) -> tuple[np.ndarray, list[str]]:
        """Each prompt's number of tokens, and the model's reply; all batches have one shape, and share one program."""
        tokenizer = pretrained.tokenizer
        first = [] if tokenizer.bos is None else [tokenizer.bos]
        # Arrays: as lists, prompts of 128K tokens would take gigabytes.
        prompts = [array("i", [*first, *tokenizer.encode(each.prompt)]) for each in asked]
        longest = max(len(tokenizer.encode(f" {', '.join(each.answers)}")) for each in asked)
        said = longest + longest // 2 if self.new_tokens is None else self.new_tokens
        size = bucket(max(map(len, prompts)) + said)
        rows = rows_within(pretrained, self.batch_size, size, self.cache_gib)
        replies, done = [""] * len(asked), 0
        for indices in by_length(prompts, rows):
            trained.check_interrupt()
            read = prefill(pretrained, [prompts[index] for index in indices], rows=rows, size=size, chunk=self.chunk)
            texts = decode(pretrained, read, indices, said, ends_of(tokenizer, ["\n"], pretrained.ends))
            for index, (text, _) in zip(indices, texts, strict=True):
                replies[index] = text
            done += len(indices)
            trained.progress.describe(length, done, len(prompts))
        return np.asarray([*map(len, prompts)]), replies
