"""The report of a suite's folder: `board.html`, `suite.html`, its figures and tables, `suite.csv`, `suite.json`.

Figures show accuracy against state, by length or position with chance, and by learning rate. Tables have the accuracy
of every model in every task, beyond the training length, and by rate; they are printed, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from evalkit.core.errors import writing
from evalkit.core.tidy import as_csv
from evalkit.record.files import write_text
from evalkit.reports import page
from evalkit.reports.curves import Frame, cost_figure, length_figure, rate_figure, save
from evalkit.reports.kinds import COSTS, Drawing, Table
from evalkit.reports.numbers import DASH, Curve, Point, grouped, shown
from evalkit.reports.suite.board import COST_HEADS, Board, ends, html, picture, range_of
from evalkit.reports.suite.cells import SOLVED, Cell, as_json, beside, finished_cells
from evalkit.reports.writer import print_report, say, sections

TITLE = "Suite"
STATES, RATES = "Accuracy against the size of the state", "Accuracy by learning rate"
LENGTHS, POSITIONS = "Accuracy by length", "Accuracy by position"
SPREAD = "Median and range over seeds; a single seed with its 95% interval."
EQUAL = 0.05
"""By how much of the others' parameters those of a model may differ without a word."""
MARK = " ✓"
EDGE = " (edge)"
LEGEND = (
    f"Median of the seeds (lowest – highest);{MARK} where there are several, and every one has {SOLVED:g} or more. "
    f"A rate with{EDGE} is the lowest or the highest of its grid: one beyond it may be better."
)


def write(
    folder: Path,
    console: Console,
    others: Sequence[Cell],
    empty: Board,
) -> None:
    """Writes the report of the finished cells in `folder`, in place of namesakes in `others`, on an `empty` board."""
    own = finished_cells(folder)
    if not own:
        say(console, f"no cell of {folder} is finished yet")
        return
    cells = beside(own, others)
    notes = [LEGEND]
    if len(cells) > len(own):
        notes.append(f"{len(cells) - len(own)} of {len(cells)} cells are results that were kept, not of {folder}.")
    otherwise = [*trained_otherwise(own, cells), *searched_otherwise(own, cells), *sized_otherwise(own, cells)]
    notes += otherwise
    board = replace(empty, cells=cells, notes=otherwise)
    listed, drawn = tables(cells), figures(board)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tasks, models = {cell.task for cell in cells}, {cell.model for cell in cells}
    lead = f"{len(tasks)} tasks, {len(models)} models, preset={own[0].preset}"
    parts = [page.notes(notes), *sections(drawn, folder, listed)]
    write_text(folder / "suite.html", page.page(TITLE, lead, parts, [asdict(cell) for cell in cells]))
    write_text(folder / "suite.csv", as_csv(list(_records(cells))))
    write_text(folder / "suite.json", as_json(own))
    write_text(folder / "board.html", html(board))
    save(picture(board), folder / "board.png")
    print_report(console, TITLE, notes, listed, lead)
    say(
        console, f"wrote {folder / 'board.html'}, board.png, suite.html, suite.csv, suite.json and {len(drawn)} figures"
    )


def trained_otherwise(own: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    """One sentence for each cell of `own` whose training differs from that of another cell of its task."""
    for cell in own:
        other = next((c for c in cells if c.task == cell.task and c.training != cell.training), None)
        if other is not None:
            yield (
                f"{cell.task} · {cell.model} was trained otherwise: {_trained(cell)}, where {other.model} has "
                f"{_trained(other)}. They cannot be compared."
            )


def _trained(cell: Cell) -> str:
    """How a cell was trained, in words.

    >>> from evalkit.reports.suite.cells import kept
    >>> _trained(kept("cpu")[0])
    'length 40, 600 steps, 768,000 tokens, chance 0.5, version 1 of the task'
    """
    length, steps, tokens, chance, version, typed = cell.training
    known = [] if tokens is None else [f"{tokens:,} tokens"]
    known += [] if chance is None else [f"chance {chance:.3g}"]
    return ", ".join([f"length {length:,}", f"{steps:,} steps", *known, f"version {version} of the task", *typed])


def searched_otherwise(own: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    """One sentence for each model of `own` that has other seeds or rates than another cell of the same training."""
    told = []
    for cell in own:
        alike = (c for c in cells if (c.task, c.training) == (cell.task, cell.training) and c.search != cell.search)
        if (other := next(alike, None)) is not None:
            told.append(((cell.model, _searched(cell), _searched(other)), cell.task))
    for (model, mine, theirs), tasks in grouped(told).items():
        yield f"{model} has {mine} in {', '.join(tasks)}, where other cells have {theirs}: no test compares them."


def _searched(cell: Cell) -> str:
    """How many seeds a cell has, with the words that decided it.

    >>> from evalkit.reports.suite.cells import kept
    >>> _searched(kept("cpu")[0])
    '3 seeds'
    """
    seeds, typed = cell.search
    words = f" ({' '.join(typed)})" if typed else ""
    return f"{seeds} {'seed' if seeds == 1 else 'seeds'}{words}"


def sized_otherwise(own: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    """One sentence for each model of `own` that is much larger or smaller than the others, each at its own size."""
    sizes = grouped((cell.model, cell.parameters) for cell in cells if cell.size is None and cell.parameters)
    largest = {model: max(found) for model, found in sizes.items()}
    for model in dict.fromkeys(cell.model for cell in own if cell.model in largest):
        others = [found for other, found in largest.items() if other != model]
        if others and abs(largest[model] - median(others)) > EQUAL * median(others):
            yield (
                f"{model} has {largest[model]:,} parameters, where the other models have {median(others):,.0f} in the "
                "median: what it has more or less may be theirs."
            )


def _records(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        shared = asdict(cell)
        measured, trials = shared.pop("measured"), shared.pop("trials")
        for measurement in measured:
            yield {**shared, "trial": False, **measurement}
        for trial in trials:
            yield {**shared, "trial": True, **trial, "length": cell.train_length}


def figures(board: Board) -> dict[str, Drawing]:
    """By file name: `<task>-state`, `-length` or `-position`, and `-rate`, where there is something to draw.

    Each has a line at the task's floor: chance, or the accuracy of a guess that the suite gives.
    """
    drawn: dict[str, Drawing] = {}
    for task, own in grouped((cell.task, cell) for cell in board.cells).items():
        models, floors = [cell for cell in own if cell.size is None], {board.floor(cell) for cell in own}
        floor = floors.pop() if len(floors) == 1 else None
        if any(cell.size is not None for cell in own):
            drawn[f"{task}-state"] = _against_state(task, own, floor)
        if any(one.last is not None for cell in models for one in cell.measured):
            drawn[f"{task}-position"] = _by_position(task, models, floor)
        elif len({one.length for cell in models for one in cell.measured}) > 1:
            drawn[f"{task}-length"] = _by_length(task, models, floor)
        if any(cell.trials for cell in models):
            drawn[f"{task}-rate"] = _by_rate(task, models, floor)
    return drawn


def _against_state(task: str, cells: Sequence[Cell], floor: float | None) -> Drawing:
    seeds: dict[str, list[tuple[int, Point]]] = {}
    for cell in cells:
        own = [one for one in cell.measured if (one.length, one.last) == (cell.train_length, None)]
        points = [(one.seed, one.point(cell.state_bytes)) for one in own if cell.state_bytes is not None]
        seeds.setdefault(cell.model, []).extend(points)
    curves = [Curve(model, grouped(points)) for model, points in seeds.items()]
    length = f"{cells[0].train_length:,} tokens"
    frame = Frame(f"state of one sequence of {length}", f"accuracy at {length}", chance=floor)
    return Drawing(STATES, f"{task}: {SPREAD}", cost_figure(curves, frame, "B", task))


def _by_position(task: str, cells: Sequence[Cell], floor: float | None) -> Drawing:
    """Of the longest sequences, at each span's last position: a mean over all would hide where chance begins."""
    longest = max(one.length for cell in cells for one in cell.measured)
    curves = []
    for cell in cells:
        own = [one for one in cell.measured if one.length == longest]
        curves.append(Curve(cell.model, grouped((one.seed, one.point(one.last)) for one in own if one.last)))
    where = f"position in a sequence of {longest:,} tokens"
    frame = Frame(where, trained=[cells[0].train_length], chance=floor)
    return Drawing(POSITIONS, f"{task}: {SPREAD}", length_figure(curves, frame, task))


def _by_length(task: str, cells: Sequence[Cell], floor: float | None) -> Drawing:
    curves = [
        Curve(cell.model, grouped((one.seed, one.point(one.length)) for one in cell.measured if one.last is None))
        for cell in cells
    ]
    frame = Frame(trained=[cells[0].train_length], chance=floor)
    return Drawing(LENGTHS, f"{task}: {SPREAD}", length_figure(curves, frame, task))


def _by_rate(task: str, cells: Sequence[Cell], floor: float | None) -> Drawing:
    rates = sorted({trial.rate for cell in cells for trial in cell.trials})
    curves = [
        Curve(cell.model, {0: [Point(rates.index(t.rate), t.accuracy) for t in cell.trials if t.accuracy is not None]})
        for cell in cells
    ]
    frame = Frame("learning rate", f"accuracy at {cells[0].train_length:,} tokens", chance=floor)
    caption = f"{task}: one seed of a search at each rate."
    return Drawing(RATES, caption, rate_figure(curves, frame, rates, task))


def tables(cells: Sequence[Cell]) -> list[Table]:
    """Those that have something to show."""
    own = [cell for cell in cells if cell.size is None]
    listed = (_at_training_length(own), *_beyond(own), _states(cells), _rates(own), _budgets(cells))
    return [table for table in listed if table.lines]


def of_seeds(values: Sequence[float]) -> str:
    """The median with the range, and a mark where there are several and all are solved; a dash for none."""
    if not values:
        return DASH
    spread = "" if len(values) == 1 else f" {range_of(values)}"
    return f"{median(values):.3f}{spread}{MARK if len(values) > 1 and min(values) >= SOLVED else ''}"


def _at_training_length(cells: Sequence[Cell]) -> Table:
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    lines = []
    for model, own in grouped((cell.model, cell) for cell in cells).items():
        by_task = {cell.task: of_seeds(cell.accuracies) for cell in own}
        lines.append([model, *_costs(own), *(by_task.get(task, DASH) for task in tasks)])
    return Table("Accuracy at the training length", ["model", *COSTS, *tasks], lines)


def _costs(cells: Sequence[Cell]) -> list[str]:
    """The cells below `COSTS`: from the least to the most where tasks differ, in vocabulary or length."""
    return [ends(getattr(cell, name) for cell in cells) for name in COST_HEADS]


def _beyond(cells: Sequence[Cell]) -> Iterator[Table]:
    """A table a task that was asked beyond its training length: lengths, and spans of the longest."""
    for task, own in grouped((cell.task, cell) for cell in cells).items():
        places = sorted(
            {(m.length, m.last) for cell in own for m in cell.measured}, key=lambda p: (p[1] is not None, p)
        )
        longer = [at for at in places if at != (own[0].train_length, None) and _is_shown(at, places, own[0])]
        if longer:
            first = {m.last: m.first for cell in own for m in cell.measured}
            names = [f"{length:,}" if last is None else f"at {first[last]}–{last}" for length, last in longer]
            lines = [[cell.model, *_costs([cell]), *(of_seeds(cell.at(*place)) for place in longer)] for cell in own]
            heading = f"{task}: beyond the training length, {own[0].train_length:,}"
            yield Table(heading, ["model", *COSTS, *names], lines)


def _is_shown(place: tuple[int, int | None], places: Sequence[tuple[int, int | None]], cell: Cell) -> bool:
    """Whether to show a place: any length; of the longest, its last span and that up to 4 times the training length."""
    length, last = place
    ends = (4 * cell.train_length, max(end or 0 for _, end in places))
    return last is None or (length == max(longest for longest, _ in places) and last in ends)


def _states(cells: Sequence[Cell]) -> Table:
    several = {cell.task for cell in cells if cell.size is not None}
    lines = [
        [f"{cell.task} · {cell.model}", *_costs([cell]), of_seeds(cell.accuracies)]
        for cell in sorted(cells, key=lambda cell: (cell.task, cell.model, cell.state_bytes or 0))
        if cell.task in several
    ]
    return Table("Accuracy by the size of the state", ["task and model", *COSTS, "accuracy"], lines)


def _rates(cells: Sequence[Cell]) -> Table:
    rates = sorted({trial.rate for cell in cells for trial in cell.trials})
    lines = []
    for cell in cells:
        by_rate = {trial.rate: trial for trial in cell.trials}
        if by_rate:
            numbers = [shown(by_rate[rate].accuracy if rate in by_rate else None) for rate in rates]
            edge = EDGE if len(by_rate) > 1 and cell.rate in (min(by_rate), max(by_rate)) else ""
            lines.append([f"{cell.task} · {cell.model}", *numbers, f"{cell.rate:g}{edge}"])
    header = ["task and model", *(f"rate {rate:g}" for rate in rates), "chosen"]
    return Table("Accuracy of the trials, one seed, by learning rate", header, lines)


def _budgets(cells: Sequence[Cell]) -> Table:
    """What each cell was given: tokens a seed, and the seconds that its seeds took, with its search if it has one."""
    lines = [
        [_named(cell), shown(cell.tokens, ","), shown(cell.tokens_to_solve, ","), shown(cell.seconds, ",")]
        for cell in cells
        if cell.tokens is not None
    ]
    header = ["task and model", "tokens a seed", f"tokens to {SOLVED:g}", "seconds of training"]
    return Table("What a cell takes", header, lines)


def _named(cell: Cell) -> str:
    return " · ".join([cell.task, cell.model, *([] if cell.size is None else [cell.size])])
