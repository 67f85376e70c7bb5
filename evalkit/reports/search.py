"""The page of a search: its trials in a table, the value against each setting, and their curves of training."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from rich.console import Console

from evalkit.core.tidy import as_csv
from evalkit.record.files import write_text
from evalkit.reports import page
from evalkit.reports.canvas import INK, STYLE, canvas, finish, fit
from evalkit.reports.curves import COLOURS, Frame, seed_figure
from evalkit.reports.kinds import Drawing, Table
from evalkit.reports.numbers import Curve, shown
from evalkit.reports.writer import print_report, say, sections

PAGE, CSV = "search.html", "search.csv"
NAMED = 7
"""So many of the best trials are in the legend."""
TRIALS, SETTINGS, TRAINING = "Trials, the best first", "The value against each setting", "While training"


class Trial(NamedTuple):
    """One trial: its settings by key, the value it is judged by, how it ended, its last step, its curve of training."""

    number: int
    settings: Mapping[str, str | int | float]
    judged: float | None
    state: str
    steps: int | None
    curve: Curve


class Searched(NamedTuple):
    """A search: its trials, the best first; what judges them at the end and in validation; settings on a log axis."""

    title: str
    by: str
    by_validation: str
    trials: Sequence[Trial]
    log: frozenset[str]
    notes: Sequence[str] = ()


def write(folder: Path, searched: Searched, console: Console, command: str) -> None:
    """Writes `search.html`, its figures and `search.csv` into `folder`, and prints the table and the best's command."""
    tables = [_table(searched)]
    drawings = {f"search-{key.lstrip('+').replace('/', '-')}": _against(searched, key) for key in _keys(searched)}
    if any(trial.curve.seeds for trial in searched.trials):
        drawings["search-training"] = _training(searched)
    records = _records(searched)
    parts = [
        page.notes(searched.notes),
        *sections(drawings, folder, tables),
        page.heading("The best"),
        page.code(command),
    ]
    lead = f"{len(searched.trials)} trials, judged by {searched.by}"
    write_text(folder / PAGE, page.page(searched.title, lead, parts, {"by": searched.by, "trials": records}))
    write_text(folder / CSV, as_csv(records))
    print_report(console, searched.title, searched.notes, tables, lead)
    say(console, f"wrote {folder / PAGE}, {', '.join(f'{name}.png' for name in drawings)}, {CSV}")
    console.print(f"the best: {command}", markup=False, highlight=False, soft_wrap=True)


def _keys(searched: Searched) -> list[str]:
    return list(dict.fromkeys(key for trial in searched.trials for key in trial.settings))


def _records(searched: Searched) -> list[dict[str, Any]]:
    return [
        {"trial": trial.number, **trial.settings, searched.by: trial.judged, "steps": trial.steps, "state": trial.state}
        for trial in searched.trials
    ]


def _table(searched: Searched) -> Table:
    keys = _keys(searched)
    lines = [
        [
            f"{trial.number:03d}",
            *(_text(trial.settings.get(key)) for key in keys),
            shown(trial.judged, ".4g"),
            shown(trial.steps, ","),
            trial.state,
        ]
        for trial in searched.trials
    ]
    return Table(TRIALS, ["trial", *keys, searched.by, "steps", ""], lines)


def _text(value: str | int | float | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _against(searched: Searched, key: str) -> Drawing:
    """A point a trial, in its own colour; a ring around the best."""
    trials = [trial for trial in searched.trials if trial.judged is not None and key in trial.settings]
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas()
        axes.set(xlabel=key, ylabel=searched.by)
        places = _places(axes, [trial.settings[key] for trial in trials], key in searched.log)
        values = [trial.judged or 0.0 for trial in trials]
        fit(axes, values)
        for order, (trial, x, y) in enumerate(zip(trials, places, values, strict=True)):
            ring = {"ms": 9, "mec": INK, "mew": 1.4} if order == 0 else {"ms": 6, "mec": "white", "mew": 0.6}
            axes.plot(x, y, marker="o", ls="", color=_colour(trial), zorder=4 if order == 0 else 3, **ring)
        finish(axes, searched.title, searched.notes, [_key(trial) for trial in trials[:NAMED]])
    return Drawing(SETTINGS, "A point a trial that ended; a ring around the best.", figure)


def _places(axes: Axes, settings: Sequence[Any], log: bool) -> list[float]:
    """Where the values of a setting lie: numbers at themselves, texts side by side."""
    if all(isinstance(setting, int | float) for setting in settings):
        if log:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        return list(settings)
    names = sorted(set(map(str, settings)), key=_in_order)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    return [names.index(str(setting)) for setting in settings]


def _in_order(text: str) -> tuple[float, str]:
    """Numbers among texts by their size, other texts after them by their letters."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text


def _training(searched: Searched) -> Drawing:
    """A curve a trial in its own colour, those that were given up among them."""
    named = {trial.number for trial in searched.trials[:NAMED]}
    curves = [  # by number, which gives each its colour
        replace(trial.curve, label=_label(trial) if trial.number in named else "")
        for trial in sorted(searched.trials, key=lambda trial: trial.number)
    ]
    frame = Frame(y=searched.by_validation, scale="fitted").while_training()
    figure = seed_figure(curves, frame, searched.title, searched.notes)
    return Drawing(TRAINING, "Validation while training: a curve a trial, ending where it was given up.", figure)


def _key(trial: Trial) -> Line2D:
    return Line2D([], [], marker="o", ls="", ms=6, color=_colour(trial), label=_label(trial))


def _label(trial: Trial) -> str:
    return f"{trial.number:03d}: {shown(trial.judged, '.4g')}"


def _colour(trial: Trial) -> str:
    return COLOURS[trial.number % len(COLOURS)]
