"""What an evaluation promises: a kind of report, and methods that the session can call."""

import inspect
import time
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from evalkit.contract.promises import Promise, not_callable, promised
from evalkit.core.contracts import Evaluation, Trained, Verdict
from evalkit.core.rows import FIELDS, Header, Record, Row, encode
from evalkit.core.trust import imported
from evalkit.reports.kinds import kind_of
from evalkit.reports.pooling import Line, Run

FUNCTIONS = ("summarise", "tables", "figures", "records")
# Rows of an evaluation are taken for so long, since it may go on for hours.
SECONDS, MOST = 20.0, 64
OF_ONE = ("run", "probe", "verdict", "limits", "check", "check_model", "check_looks")
METHODS = {**dict.fromkeys(OF_ONE, 1), "check_tokens": 2, "held": 0, "kept": 1}


class EvaluationUnderCheck:
    """An evaluation, and a model that is not trained, for it to measure."""

    def __init__(self, evaluation: Any, make_trained: Callable[[], Trained]):
        self.evaluation, self.cut_short = evaluation, False
        self._make_trained = make_trained

    @cached_property
    def trained(self) -> Trained:
        """The input of the evaluation; its parameters take a moment, so they are made when they are needed."""
        return self._make_trained()

    @cached_property
    def rows(self) -> list[Row]:
        """Its first rows."""
        began = time.monotonic()
        rows = []
        for entry in islice(self.evaluation.run(self.trained), MOST):
            rows.append(entry)
            if time.monotonic() - began > SECONDS:
                self.cut_short = True
                break
        return rows


@promised("evaluation", "it is an Evaluation of evalkit.core.contracts, whose run(trained) yields rows")
def _evaluation(subject: EvaluationUnderCheck) -> str | None:
    evaluation = subject.evaluation
    if not isinstance(evaluation, Evaluation):
        return f"it is a {type(evaluation).__name__}"
    if misfit := not_callable(evaluation, METHODS):
        return misfit
    if not inspect.isgeneratorfunction(inspect.unwrap(type(evaluation).run)):
        return "run is no generator; let it yield each row as it is measured"
    return None


@promised("kind", "kind names a module with the functions summarise, tables, figures and records")
def _kind(subject: EvaluationUnderCheck) -> str | None:
    try:
        kind = type(subject.evaluation).kind
    except AttributeError:
        return "it has none"
    if not isinstance(kind, str):
        return f"it is {kind!r}"
    module = imported(kind)
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    return f"{kind} has no {', '.join(missing)}" if missing else None


@promised("pieces", "pieces is how many lengths it reports progress of, a whole number from 0")
def _pieces(subject: EvaluationUnderCheck) -> str | None:
    pieces = subject.evaluation.pieces
    return None if isinstance(pieces, int) and pieces >= 0 else f"it is {pieces!r}"


@promised("limits", "limits(model) is a list of sentences")
def _limits(subject: EvaluationUnderCheck) -> str | None:
    limits = subject.evaluation.limits(subject.trained.model)
    fits = not isinstance(limits, str) and all(isinstance(line, str) for line in limits)
    return None if fits else f"it is {limits!r}"


@promised("report", "the four functions of kind take the rows, all of them, and verdict says what came of them")
def _report(subject: EvaluationUnderCheck) -> str | None:
    trained, evaluation = subject.trained, subject.evaluation
    if len(subject.rows) == MOST or subject.cut_short:
        return None  # what takes longer is seen at the end of a run
    header = Header(
        run="check",
        task="check",
        model="check",
        kind=evaluation.kind,
        train_length=trained.train_length,
        window=trained.model.window,
        seeds=trained.seeds,
        chance=getattr(trained.task, "chance", None),
        answer_length=getattr(trained.task, "answer_length", None),
    )
    kind, record = kind_of(evaluation.kind), Record(header, list(subject.rows))
    lines = [Line("check", [Run(Path(), record, {})], alone=True)]
    for name, arguments in (("summarise", [record]), ("tables", [lines]), ("records", [lines])):
        if not isinstance(getattr(kind, name)(*arguments), dict if name == "summarise" else list):
            return f"{name} gives no {'dictionary' if name == 'summarise' else 'list'}"
    kind.figures(lines, "check", [])
    verdict = evaluation.verdict(trained)
    return None if isinstance(verdict, Verdict) else f"verdict gives {type(verdict).__name__}"


@promised("rows", "run yields rows as trained.make_row makes them, each with a metric")
def _rows(subject: EvaluationUnderCheck) -> str | None:
    for entry in subject.rows:
        if not isinstance(entry, dict) or set(entry) != set(FIELDS):
            return f"it yields {str(entry)[:60]}"
        encode(entry)
    return None if subject.rows else "it yields none"


QUICK_PROMISES_OF_EVALUATIONS: tuple[tuple[Promise, ...], ...] = ((_evaluation,), (_kind, _pieces, _limits))
"""In groups: a group is checked only if all promises of those before it are kept."""
PROMISES_OF_EVALUATIONS: tuple[tuple[Promise, ...], ...] = (*QUICK_PROMISES_OF_EVALUATIONS, (_rows,), (_report,))
