"""The figures of a suite: accuracy against state, by length or position with chance, and by learning rate."""

from collections.abc import Sequence

from evalkit.reports.curves import Frame, cost_figure, length_figure, rate_figure
from evalkit.reports.kinds import Drawing
from evalkit.reports.numbers import grouped
from evalkit.reports.points import Curve, Point
from evalkit.reports.suite.cells import Cell

STATES, RATES = "Accuracy against the size of the state", "Accuracy by learning rate"
LENGTHS, POSITIONS = "Accuracy by length", "Accuracy by position"
SPREAD = "Median and range over seeds; a single seed with its 95% interval."


def figures(cells: Sequence[Cell]) -> dict[str, Drawing]:
    """By file name: `<task>-state`, `-length` or `-position`, and `-rate`, where there is something to draw."""
    drawn: dict[str, Drawing] = {}
    for task, own in grouped((cell.task, cell) for cell in cells).items():
        models = [cell for cell in own if cell.size is None]
        if any(cell.size is not None for cell in own):
            drawn[f"{task}-state"] = _against_state(task, own)
        if any(one.last is not None for cell in models for one in cell.measured):
            drawn[f"{task}-position"] = _by_position(task, models)
        elif len({one.length for cell in models for one in cell.measured}) > 1:
            drawn[f"{task}-length"] = _by_length(task, models)
        if any(cell.trials for cell in models):
            drawn[f"{task}-rate"] = _by_rate(task, models)
    return drawn


def _against_state(task: str, cells: Sequence[Cell]) -> Drawing:
    seeds: dict[str, list[tuple[int, Point]]] = {}
    for cell in cells:
        own = [one for one in cell.measured if (one.length, one.last) == (cell.train_length, None)]
        points = [(one.seed, one.point(cell.state_bytes)) for one in own if cell.state_bytes is not None]
        seeds.setdefault(cell.model, []).extend(points)
    curves = [Curve(model, grouped(points)) for model, points in seeds.items()]
    length = f"{cells[0].train_length:,} tokens"
    frame = Frame(f"state of one sequence of {length}", f"accuracy at {length}", chance=_chance(cells))
    return Drawing(STATES, f"{task}: {SPREAD}", cost_figure(curves, frame, "B", task))


def _by_position(task: str, cells: Sequence[Cell]) -> Drawing:
    """Of the longest sequences, at each span's last position: a mean over all would hide where chance begins."""
    longest = max(one.length for cell in cells for one in cell.measured)
    curves = []
    for cell in cells:
        own = [one for one in cell.measured if one.length == longest]
        curves.append(Curve(cell.model, grouped((one.seed, one.point(one.last)) for one in own if one.last)))
    where = f"position in a sequence of {longest:,} tokens"
    frame = Frame(where, trained=[cells[0].train_length], chance=_chance(cells))
    return Drawing(POSITIONS, f"{task}: {SPREAD}", length_figure(curves, frame, task))


def _by_length(task: str, cells: Sequence[Cell]) -> Drawing:
    curves = [
        Curve(cell.model, grouped((one.seed, one.point(one.length)) for one in cell.measured if one.last is None))
        for cell in cells
    ]
    frame = Frame(trained=[cells[0].train_length], chance=_chance(cells))
    return Drawing(LENGTHS, f"{task}: {SPREAD}", length_figure(curves, frame, task))


def _by_rate(task: str, cells: Sequence[Cell]) -> Drawing:
    rates = sorted({trial.rate for cell in cells for trial in cell.trials})
    curves = [
        Curve(cell.model, {0: [Point(rates.index(t.rate), t.accuracy) for t in cell.trials if t.accuracy is not None]})
        for cell in cells
    ]
    frame = Frame("learning rate", f"accuracy at {cells[0].train_length:,} tokens", chance=_chance(cells))
    caption = f"{task}: one seed of a search at each rate, a share of the steps."
    return Drawing(RATES, caption, rate_figure(curves, frame, rates, task))


def _chance(cells: Sequence[Cell]) -> float | None:
    chances = {cell.chance for cell in cells}
    return chances.pop() if len(chances) == 1 else None
