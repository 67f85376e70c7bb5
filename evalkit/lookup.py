"""`python -m evalkit.lookup RUN [key=value …]`: phonebook lookup in text on a run's newest checkpoint (fig. 6c).

Writes `metrics.jsonl`, `lookup.png` and `config.yaml` to `RUN/lookup/<time>`; the settings are those of
`conf/lookup/phonebook.yaml`.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from evalkit import catalogue, composition
from evalkit.config import from_file
from evalkit.errors import UserError, writing
from evalkit.figures import extrapolation_figure, save
from evalkit.loading import restore
from evalkit.pretrained import Pretrained
from evalkit.progress import EvaluationProgress
from evalkit.retrieval import ALL, INSIDE, OUTSIDE, Retrieval
from evalkit.rows import FILE, Row, RowLog, read, row, value
from evalkit.schema import locate, verify
from evalkit.statistics import wilson
from evalkit.summary import Curve, Point, run_facts
from evalkit.terminal import print_table
from evalkit.tokenizer import Bytes
from evalkit.train import params_of

NAME = "phonebook"
LABELS = {ALL: "all prompts", INSIDE: "answer inside the window", OUTSIDE: "answer outside it"}


def lookup(pretrained: Pretrained, retrieval: Retrieval, folder: Path, console: Console) -> None:
    """Evaluates into `folder`: rows as they come, then the figure and a table. Raises UserError for what cannot be."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    make_row = partial(row, run=folder.name, task=NAME, model=Path(pretrained.source).name)
    with RowLog.open(folder / FILE) as log:
        log.write([facts(pretrained, make_row)])
        with EvaluationProgress(console, len(set(retrieval.lengths)), NAME) as progress:
            try:
                for entry in retrieval.run(pretrained, make_row, progress.describe):
                    log.write([entry])
            except ValueError as error:
                raise UserError(str(error)) from error
    rows = read(folder)
    save(lookup_figure(rows), folder / "lookup.png")
    print_table(console, *lookup_table(rows))


def facts(pretrained: Pretrained, make_row: Any) -> Row:
    """The first row: what was evaluated."""
    return make_row(
        metric="parameters",
        total=sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(pretrained.params)),
        count=1,
        extra={
            "source": pretrained.source,
            "digest": pretrained.digest,
            "train_length": pretrained.train_length,
            "window": pretrained.model.window,
        },
    )


def lookup_figure(rows: Sequence[Row]) -> Figure:
    """Exact match against prompt tokens with 95% Wilson intervals, from the rows alone (De et al. 2024, fig. 6c).

    A model with a window has three lines: all prompts, and those whose answer is inside and outside of it.
    """
    told = run_facts(rows)
    curves = [Curve(LABELS[which], {0: points}) for which in LABELS if (points := _points(rows, which, "exact_match"))]
    if len(curves) == 1:
        curves = [curves[0].relabel(str(told["model"]))]
    title = f"Phonebook lookup · {told['model']}"
    return extrapolation_figure(curves, told["train_length"], [told["window"]], title=title)


def lookup_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, one a length."""
    header = ["length", "entries", "exact match", "inside window", "outside", "digits", "log p", "prompts"]
    found = {(entry["length"], (entry["extra"] or {}).get("answer"), entry["metric"]): entry for entry in rows}
    lines = []
    for length in sorted({entry["length"] for entry in rows if entry["length"] is not None}):
        whole = found[length, ALL, "exact_match"]
        cells = [
            found.get((length, which, metric))
            for which, metric in (
                *((which, "exact_match") for which in (ALL, INSIDE, OUTSIDE)),
                (ALL, "digit_accuracy"),
                (ALL, "log_probability"),
            )
        ]
        shown = ["–" if entry is None else f"{value(entry):.3f}" for entry in cells]
        lines.append([f"{length:,}", f"{(whole['extra'] or {})['entries']:,}", *shown, f"{whole['count']:,g}"])
    return header, lines


def _points(rows: Sequence[Row], which: str, metric: str) -> list[Point]:
    chosen = [entry for entry in rows if entry["metric"] == metric and (entry["extra"] or {}).get("answer") == which]
    points = []
    for entry in chosen:
        total, count = entry["total"] or 0.0, entry["count"] or 0
        points.append(Point(entry["length"] or 0, value(entry), *wilson(total, count), count))
    return points


def settings(overrides: Sequence[str]) -> Mapping[str, Any]:
    """`conf/lookup/phonebook.yaml` with `overrides`, as plain data; raises UserError for an unknown key or type."""
    base = OmegaConf.load(catalogue.directory() / "lookup" / f"{NAME}.yaml")
    config = OmegaConf.create(base)
    for override in composition.parse(overrides):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    plain, known = ({"lookup": OmegaConf.to_container(node, resolve=True)} for node in (config, base))
    verify(plain, known, {"lookup": Retrieval})
    return plain["lookup"]  # type: ignore[return-value]


def build(plain: Mapping[str, Any]) -> Retrieval:
    """The evaluation that settings describe; raises UserError with the constructor's own message."""
    try:
        return instantiate(plain, _convert_="all")
    except InstantiationException as error:
        cause = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise UserError(locate(plain, "lookup", str(cause)).removeprefix("lookup.")) from error


def open_run(run: Path) -> Pretrained:
    """The first seed of a run trained on bytes; raises UserError for any other run."""
    experiment = from_file(run / "config.yaml")
    tokenizer = Bytes()
    if experiment.task.vocab_size != tokenizer.vocab_size:
        raise UserError(
            f"{run} was trained on {experiment.task_name}, a vocabulary of {experiment.task.vocab_size}, which is no "
            f"text; give a run trained on bytes, a vocabulary of {tokenizer.vocab_size}"
        )
    state, step = restore(experiment, run)
    digest = hashlib.sha256(f"{run.resolve()} {step}".encode()).hexdigest()[:16]
    return Pretrained(experiment.model, params_of(state, 0), tokenizer, str(run), digest, experiment.task.length)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code, 2 for what cannot be evaluated."""
    parser = argparse.ArgumentParser(
        prog="python -m evalkit.lookup", description="Phonebook lookup in text, against the prompt's length in tokens."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run trained on bytes")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="such as lengths=[256,1024] book.depth=0.5")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        catalogue.refuse_foreign_packages()
        plain = settings(given.settings)
        retrieval, pretrained = build(plain), open_run(given.run)
        folder = given.run / "lookup" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
        lookup(pretrained, retrieval, folder, console)
        with writing(folder):
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(plain))), encoding="utf-8")
        console.print(Text(f"wrote {folder / 'lookup.png'}", style="dim"), soft_wrap=True)
    except UserError as error:
        print(f"evalkit.lookup: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
