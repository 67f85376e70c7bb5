"""lm-eval's benchmarks on a checkpoint, recorded as any evaluation is (De et al. 2024, table 1)."""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from typing import Any

from lm_eval import evaluator
from lm_eval.utils import make_table

from evalkit.core.contracts import Evaluation, NoProgress, Trained, Verdict
from evalkit.core.errors import UserError
from evalkit.core.rows import Row
from evalkit.evaluations.downstream import calibration, data_sets, table1
from evalkit.evaluations.downstream.benchmarks import Benchmarks
from evalkit.evaluations.downstream.language_model import PretrainedLM, refuse_unserved
from evalkit.evaluations.downstream.objects import UNSAFE, read, refuse_examples, refuse_other_input
from evalkit.record.files import write_text

FILE = "lm_eval.json"
"""All that lm-eval itself says of the results, beside the rows."""


@dataclass(frozen=True)
class Downstream(Evaluation):
    """Scores a checkpoint on lm-eval's benchmarks, which are the task (`Benchmarks`).

    Raises UserError for an invalid value.

    Options:
      max_length (tokens): tokens that are read at once, at most; null: no limit.
      truncate: whether contexts are cut on the left to `max_length`, and counted, instead of refused.
      add_bos: whether texts begin with the tokenizer's beginning-of-text token; null: as the checkpoint was trained.
      share_prefixes: whether a context that several continuations follow is read once.
      calibrate: published results that this run must reproduce, by their name in docs/calibration.md; null: none.
    """

    kind = "evalkit.evaluations.downstream.report"

    max_length: int | None = None
    truncate: bool = False
    add_bos: bool | None = None
    share_prefixes: bool = True
    calibrate: str | None = None

    def __post_init__(self) -> None:
        if self.calibrate is not None:
            calibration.known(self.calibrate)

    def check(self, task: Any) -> None:
        """Raises UserError for another protocol than the published one, absent data sets, and unserved sampling."""
        if not isinstance(task, Benchmarks):
            raise ValueError("downstream runs lm-eval's benchmarks; give task=downstream checkpoint=FOLDER")
        if self.calibrate is not None:
            self._refuse_other_protocol(self.calibrate, task)
        with task.located(self._metadata("")) as index:
            for name, config in data_sets.needed(index, task.names).items():
                refuse_unserved(name, config.get("output_type"), config.get("generation_kwargs"))
                refuse_other_input(name, config)
                if config.get(UNSAFE):
                    raise UserError(
                        f"task {name} runs code that the model wrote; give it to python -m evalkit lm-eval run with "
                        "--confirm_run_unsafe_code"
                    )

    def run(self, trained: Trained) -> Iterator[Row]:
        """A row for each metric of each benchmark and group; its count is of documents."""
        task = trained.task
        assert isinstance(task, Benchmarks)
        # A look while training shows no bars of lm-eval's, which go to stderr, beside those of the training.
        bars = redirect_stderr(StringIO()) if isinstance(trained.progress, NoProgress) else nullcontext()
        with bars, task.located(self._metadata(trained.source)) as index:
            objects = read(index, task.names)
            refuse_examples(objects, task.num_fewshot)
            results = evaluator.simple_evaluate(
                model=PretrainedLM(trained.pretrained(), **self._settings),
                tasks=objects,
                task_manager=index,
                num_fewshot=task.num_fewshot,
                limit=task.limit,
                log_samples=False,
                bootstrap_iters=0,  # lm-eval takes them in processes that fork, which JAX's threads do not survive
            )
        assert results is not None, "lm-eval gives results to the first process, and there is one"
        write_text(trained.folder / FILE, json.dumps(results, indent=2, default=str) + "\n")
        yield from rows_of(results, trained)

    def verdict(self, trained: Trained) -> Verdict:
        """lm-eval's own table, and whether the published results were reached."""
        results = json.loads((trained.folder / FILE).read_text(encoding="utf-8"))
        text = f"{make_table(results)}\n{table1.beside_the_paper(results['results'])}"
        if self.calibrate is None:
            return Verdict(text, 0)
        checks = calibration.checks(self.calibrate, results)
        text += calibration.shown(self.calibrate, checks)
        return Verdict(text, int(not all(check.holds for check in checks)))

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "calibrate"}

    def _metadata(self, source: str) -> Mapping[str, Any]:
        return {"pretrained": source, **self._settings}

    def _refuse_other_protocol(self, calibrate: str, task: Benchmarks) -> None:
        protocol = {"limit": task.limit, "num_fewshot": task.num_fewshot, "add_bos": self.add_bos}
        for name, value in {**protocol, "truncate": self.truncate or None}.items():
            if value is not None:
                raise UserError(
                    f"calibrate={calibrate} with {name}={value} compares with another protocol; leave {name} out"
                )
        index = task.index(self._metadata(""))
        needed = set(data_sets.needed(index, task.names))
        calibration.refuse_missing(calibrate, lambda name: set(data_sets.needed(index, [name])) <= needed)


def rows_of(results: Mapping[str, Any], trained: Trained) -> Iterator[Row]:
    """A row for each metric of each benchmark and group of lm-eval's `results`."""
    named = {"model": trained.source} if trained.source else {}  # a run that trains has its own name
    make = partial(trained.make_row, split="benchmark", **named)
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            metric, comma, chosen = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                name = f"{task}/{metric}" if chosen == "none" else f"{task}/{metric}/{chosen}"
                count = calibration.documents(results, task)
                shots = results["n-shot"].get(task)
                yield make(metric=name, total=value * count, count=count, extra={"num_fewshot": shots})
