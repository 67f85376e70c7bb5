"""The tables of a suite: accuracy of every model in every task, beyond the training length, and by rate."""

from collections.abc import Iterator, Sequence
from statistics import median

from evalkit.reports.kinds import COSTS, Table
from evalkit.reports.numbers import DASH, grouped, shown
from evalkit.reports.suite.cells import SOLVED, Cell

MARK = " ✓"
EDGE = " (edge)"
LEGEND = (
    f"Median of the seeds (lowest – highest);{MARK} where there are several, and every one has {SOLVED:g} or more. "
    f"A rate with{EDGE} is the lowest or the highest of its grid: one beyond it may be better."
)


def tables(cells: Sequence[Cell]) -> list[Table]:
    """Those that have something to show."""
    own = [cell for cell in cells if cell.size is None]
    return [table for table in (_trained(own), *_beyond(own), _states(cells), _rates(own)) if table.lines]


def of_seeds(values: Sequence[float]) -> str:
    """The median with the range, and a mark where there are several and all are solved; a dash for none."""
    if not values:
        return DASH
    low, high = min(values), max(values)
    spread = "" if len(values) == 1 else f" ({low:.3f} – {high:.3f})"
    return f"{median(values):.3f}{spread}{MARK if len(values) > 1 and low >= SOLVED else ''}"


def _trained(cells: Sequence[Cell]) -> Table:
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    lines = []
    for model, own in grouped((cell.model, cell) for cell in cells).items():
        by_task = {cell.task: of_seeds(cell.trained) for cell in own}
        lines.append([model, *_costs(own), *(by_task.get(task, DASH) for task in tasks)])
    return Table("Accuracy at the training length", ["model", *COSTS, *tasks], lines)


def _costs(cells: Sequence[Cell]) -> list[str]:
    """The cells below `COSTS`: from the least to the most where tasks differ, in vocabulary or length."""
    costs = []
    for name in ("parameters", "state_bytes", "flops_per_token"):
        numbers = {number for cell in cells if (number := getattr(cell, name)) is not None}
        ends = sorted({min(numbers), max(numbers)}) if numbers else []
        costs.append(" – ".join(f"{number:,}" for number in ends) or DASH)
    return costs


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
    """Whether it is a length, or of the longest its last positions or those up to four times the training length."""
    length, last = place
    ends = (4 * cell.train_length, max(end or 0 for _, end in places))
    return last is None or (length == max(longest for longest, _ in places) and last in ends)


def _states(cells: Sequence[Cell]) -> Table:
    several = {cell.task for cell in cells if cell.size is not None}
    lines = [
        [f"{cell.task} · {cell.model}", *_costs([cell]), of_seeds(cell.trained)]
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
