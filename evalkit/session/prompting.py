"""Generates text from a checkpoint; prompts and settings are read and checked before the weights are read."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from evalkit.checkpoints.pretrained import find
from evalkit.checks import at_least, one_of
from evalkit.configuration.capacity import Need, refuse_too_large
from evalkit.configuration.experiment import DTYPES
from evalkit.configuration.positions import refuse_beyond_positions
from evalkit.core.contracts import Pretrained, Task, Unread
from evalkit.core.errors import UserError
from evalkit.inference.generation import LARGEST_SEED, Heard, generate
from evalkit.inference.prefill import bucket
from evalkit.inference.sampling import Sampler
from evalkit.inference.texts import Generated, ends_of
from evalkit.tasks.text import documents
from evalkit.tasks.text.tokenizers import Numbers, Symbols, Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How texts are generated; `evalkit generate --help` says what each means. Raises ValueError for what cannot be."""

    tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    batch_size: int = 8
    chunk: int = 256
    dtype: str = DTYPES[0]
    cache_dtype: str | None = None
    allow_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        at_least(self, 1, "tokens", "batch_size", "chunk")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ValueError(f"seed={self.seed}; allowed: 0 to {LARGEST_SEED}")
        one_of(self, "dtype", DTYPES)
        if self.cache_dtype is not None:
            one_of(self, "cache_dtype", DTYPES)
        _ = self.sampler

    @property
    def sampler(self) -> Sampler:
        """What chooses the tokens."""
        return Sampler(self.temperature, self.top_k, self.top_p)


@dataclass(frozen=True)
class Ready:
    """Prompts in the tokens of a checkpoint whose weights are not read yet."""

    found: Unread
    tokenizer: Tokenizer
    prompts: Sequence[Sequence[int]]
    settings: Settings

    def read(self) -> Pretrained:
        """Reads the weights."""
        return replace(self.found.read(), tokenizer=self.tokenizer)

    def say(self, pretrained: Pretrained, said: Any, heard: Heard | None) -> list[Generated]:
        """The texts, see `generate`; with fewer prompts than rows there are fewer rows."""
        settings = self.settings
        return generate(
            pretrained,
            self.prompts,
            settings.tokens,
            stop=settings.stop,
            stop_tokens=settings.stop_tokens,
            sampler=settings.sampler,
            seed=settings.seed,
            batch_size=_rows(settings, self.prompts),
            chunk=min(settings.chunk, max(map(len, self.prompts))),
            said=said,
            heard=heard,
        )


def ready(checkpoint: str, prompts: Sequence[str], settings: Settings) -> Ready:
    """Finds the checkpoint and turns prompts into its tokens; raises UserError, before weights are read, in one line.

    It refuses an empty prompt, one that the tokenizer cannot encode, stop tokens that are not in the vocabulary, and
    prompts whose caches would not fit into this machine's memory.
    """
    found = find(checkpoint, settings.dtype, settings.allow_targets, settings.cache_dtype)
    tokenizer = found.tokenizer
    if isinstance(tokenizer, Numbers) and isinstance(found.task, Task):
        tokenizer = Symbols(tokenizer.vocab_size, found.task.describe)
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    tokens = []
    for number, prompt in enumerate(prompts):
        which = "the prompt" if len(prompts) == 1 else f"prompt {number}"
        try:
            documents.refuse_halves(prompt, "its text")
            encoded, dropped = tokenizer.read(prompt)
        except ValueError as error:
            raise UserError(f"{which}: {error}") from error
        if dropped:
            logger.warning("%s: the tokenizer has no token for %d bytes of it", which, dropped)
        if not encoded:
            raise UserError(f"{which} is empty; give at least one token of text")
        tokens.append([*first, *encoded])
    try:
        ends_of(tokenizer, settings.stop, settings.stop_tokens)
    except ValueError as error:
        raise UserError(str(error)) from error
    _refuse_too_long(found, tokens, settings)
    return Ready(found, tokenizer, tokens, settings)


def prompts_in(file: Path) -> list[Mapping[str, Any]]:
    """The entries of a file, one a line or row, each with its `prompt`; raises UserError for an entry without one."""
    prompts = []
    try:
        for entry in documents.entries(file):
            row = {"prompt": entry.value} if isinstance(entry.value, str) else entry.value
            if documents.text_of(entry._replace(value=row), "prompt") is None:
                raise UserError(f'{entry.where}, has no prompt; give a string, or an object with "prompt"')
            prompts.append(cast("Mapping[str, Any]", row))
    except ValueError as error:
        raise UserError(str(error)) from error
    if not prompts:
        raise UserError(f"file={file} has no prompt; give one a line")
    return prompts


def _rows(settings: Settings, prompts: Sequence[Any]) -> int:
    return min(settings.batch_size, len(prompts))


def _refuse_too_long(found: Unread, prompts: Sequence[Sequence[int]], settings: Settings) -> None:
    longest, rows = max(map(len, prompts)), _rows(settings, prompts)
    size = bucket(longest + settings.tokens)
    request = f"a prompt of {longest:,} tokens and {settings.tokens:,} after it"
    refuse_beyond_positions(request, size)
    of = f"the cache, {rows} of them in a batch"
    instead = "give a shorter prompt, or fewer rows by batch_size="
    refuse_too_large(iter([Need(request, found.model.cache_bytes(rows, size), of, instead)]))
