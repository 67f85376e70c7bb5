"""The board: every task with every model at a glance, `board.html` and `board.png`.

A square has the median and the range of a cell's seeds at the training length, how far they reach beyond it, and how
wide the window of its learning rates is. What is no better than the task's floor is a dash, and what was not run is
grey, with its command.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import combinations
from statistics import median

from matplotlib.figure import Figure

from evalkit.core.statistics import holm, least_p, scaled, two_sided
from evalkit.reports import page
from evalkit.reports.heat import MANY, Square, heat_figure
from evalkit.reports.numbers import DASH, grouped
from evalkit.reports.suite.cells import SOLVED, WORKS, Cell, window_of

TITLE = "Board"
LEVEL = 0.05
"""Two cells differ if their p, adjusted for all comparisons, is below this."""
LISTED = 20
"""How many pairs that differ are named."""
COST_HEADS = {"parameters": "parameters", "state_bytes": "state, bytes", "flops_per_token": "FLOPs a token"}
COLUMNS = ("model", *COST_HEADS.values())
CSS = """
body { max-width: 96rem; }
.board input { position: absolute; opacity: 0; pointer-events: none; }
.board .lines { display: flex; flex-direction: column; min-width: max-content; }
.board .line { display: grid; gap: 2px; margin: 0 0 2px; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
.board .line > * { padding: 0.3rem 0.5rem; min-height: 3.4rem; overflow-wrap: anywhere; }
.board .line > :first-child { position: sticky; left: 0; padding-left: 0; background: var(--page); }
.board .head > * { min-height: 0; color: var(--muted); font-weight: 600; }
.board label { cursor: pointer; text-decoration: underline dotted; }
.board b { display: block; font-size: 1rem; } .board small { display: block; font-size: 0.72rem; line-height: 1.3; }
.board .not-run { background: var(--tint); color: var(--muted); }
.board .not-run code { display: block; font-size: 0.62rem; }
.board .run { background: color-mix(in srgb, var(--mark) var(--share), var(--page)); }
.board .solved { box-shadow: inset 0 0 0 2px var(--ink); }
@media print { @page { size: landscape; margin: 1cm; } .board .scroll { overflow: visible; }
  .board .line { font-size: 7pt; break-inside: avoid; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .board .line > * { padding: 0.15rem 0.3rem; } .board b { font-size: 8pt; } .board small { font-size: 6pt; }
  .board .not-run code { font-size: 5pt; } }
"""


@dataclass(frozen=True)
class Board:
    """What is shown: the cells of each model's own size, and the squares (task, model) that are wanted.

    `floors` has the accuracy of a guess by task, such as 1/64 where 64 values are shown; for other tasks it is chance.
    `command` runs a square with `task=` and `model=` after it, or `+mixer=` for one of `mixers`. `controls` has, by
    task, the model that must solve it: where it does not, the others were trained too briefly to be judged. `notes` say
    which cells were trained otherwise than their neighbours. `typed` has the words that were typed for one task or one
    model alone, by ("task" or "model", its name).
    """

    cells: Sequence[Cell]
    wanted: Sequence[tuple[str, str]]
    floors: Mapping[str, float]
    command: str
    mixers: Sequence[str] = ()
    controls: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    typed: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def by_square(self) -> dict[tuple[str, str], Cell]:
        """The cells by task and model, of those that were asked at the training length."""
        return {(cell.task, cell.model): cell for cell in self.cells if cell.size is None and cell.accuracies}

    @property
    def tasks(self) -> list[str]:
        """Every task, those that are wanted first."""
        return list(dict.fromkeys(task for task, _ in (*self.wanted, *self.by_square)))

    @property
    def models(self) -> list[str]:
        """Every model, those that are wanted first."""
        return list(dict.fromkeys(model for _, model in (*self.wanted, *self.by_square)))

    def floor(self, cell: Cell) -> float:
        """The accuracy at or below which nothing of the task was learned."""
        return self.floors.get(cell.task, cell.chance or 0.0)

    def is_learned(self, cell: Cell) -> bool:
        """Whether the 95% interval of the median seed is above the floor."""
        least = [one.low for one in cell.measured if (one.length, one.last) == (cell.train_length, None)]
        return median(least) > self.floor(cell)

    def share(self, cell: Cell) -> float:
        """The median of the seeds: 0 at the floor and where nothing was learned, 1 where all is right."""
        return scaled(median(cell.accuracies), self.floor(cell)) if self.is_learned(cell) else 0.0

    @property
    def count(self) -> str:
        """How many squares there are, and how many of them were run."""
        tasks, models = _counted(len(self.tasks), "task"), _counted(len(self.models), "model")
        return f"{tasks}, {models}, {len(self.by_square)} of {len(self.tasks) * len(self.models)} cells run"


def controls(board: Board) -> Iterator[str]:
    """What the controls say of the tasks of which a cell was run: a sentence for each that fails, and for the others.

    A control holds where every seed has `SOLVED` at the training length. Of a board without any, nothing is said. A
    control that was trained otherwise than all others of its task says nothing of them.
    """
    shown = [task for task in board.tasks if any(task == of_task for of_task, _ in board.by_square)]
    run = {task: _control(board, task) for task in shown}
    holding: dict[str, list[str]] = {}
    for task, cell in run.items():
        if cell is None:
            continue
        if min(cell.accuracies) >= SOLVED:
            holding.setdefault(cell.model, []).append(task)
        else:
            found = f"{median(cell.accuracies):.3f} {range_of(cell.accuracies)}"
            yield (
                f"{cell.model}, the control of {task}, has {found}, and not {SOLVED:g} on every seed: "
                "this training is too short to say what a model cannot do."
            )
    for model, tasks in holding.items():
        yield f"{model}, the control of {', '.join(tasks)}, has {SOLVED:g} on every seed there."
    without = [task for task, cell in run.items() if cell is None]
    if board.controls and without:
        yield f"No control was run of {', '.join(without)}: a low accuracy there may be a training that is too short."


def _control(board: Board, task: str) -> Cell | None:
    """The control of a task, if it was run and trained as others there."""
    cell = board.by_square.get((task, board.controls.get(task, "")))
    others = [other for other in board.by_square.values() if other.task == task and other is not cell]
    if cell is None or (others and all(other.training != cell.training for other in others)):
        return None
    return cell


def reach(cell: Cell) -> int | None:
    """The longest evaluated length up to which every seed has `SOLVED`; None if not even the shortest has it."""
    lengths = sorted({one.length for one in cell.measured if one.last is None and one.length >= cell.train_length})
    reached = None
    for length in lengths:
        if min(cell.at(length), default=0.0) < SOLVED:
            break
        reached = length
    return reached


def window(cell: Cell, floor: float) -> float | None:
    """Decades between the lowest and the highest rate in the window; None if none learned anything.

    A rate is in the window if its accuracy above the floor is at least `WORKS` of the best rate's.
    """
    rates = [trial.rate for trial in window_of(cell.trials, floor)]
    return math.log10(rates[-1] / rates[0]) if rates else None


def comparisons(board: Board) -> str:
    """How many pairs of cells that were trained alike were compared, and which of them differ, in a sentence.

    A pair whose seeds are so few that its least p is above `LEVEL` can never differ, so that p is adjusted for the
    others alone (Tarone 1990).
    """
    pairs = [
        (f"{task}: {one.model} and {other.model}", one.accuracies, other.accuracies)
        for task in board.tasks
        for one, other in combinations([cell for cell in board.by_square.values() if cell.task == task], 2)
        if one.protocol == other.protocol and len(one.accuracies) > 1
    ]
    if not pairs:
        return "No two cells of one task were trained alike with several seeds each, so none were compared."
    able = [(name, one, other) for name, one, other in pairs if least_p(len(one), len(other)) < LEVEL]
    adjusted = holm([two_sided(one, other) for _, one, other in able])
    differ = [name for (name, _, _), p in zip(able, adjusted, strict=True) if p < LEVEL]
    least = min(least_p(len(one), len(other)) for _, one, other in able or pairs)
    possible = (
        ""
        if able and least * len(able) < LEVEL
        else f"; so few seeds cannot show more, since one pair has at least {least:.2g}"
    )
    return (
        f"{_counted(len(pairs), 'pair')} of cells of one task, compared by the exact Mann-Whitney test, adjusted for "
        f"the {len(able):,} that have seeds enough (Holm): {len(differ):,} differ at {LEVEL:g}{possible}"
        f"{_listed(differ)}."
    )


def _listed(differ: Sequence[str]) -> str:
    """The pairs that differ, as the end of a sentence; the first of many."""
    more = len(differ) - LISTED
    listed = [*differ[:LISTED], *([f"{more:,} more"] if more > 0 else [])]
    return f": {'; '.join(listed)}" if listed else ""


def html(board: Board) -> str:
    """The page: a line a model, sorted by the column whose head is chosen, without any script."""
    heads = [*COLUMNS, *board.tasks]
    buttons = "".join(
        f'<input type="radio" name="by" id="by{index}"{" checked" if index == 0 else ""}>'
        for index in range(len(heads))
    )
    chosen = "".join(
        f"#by{i}:checked ~ .scroll .line {{ order: var(--o{i}); }}\n"
        f"#by{i}:checked ~ .scroll .h{i} {{ color: var(--ink); }}\n"
        f"#by{i}:focus-visible ~ .scroll .h{i} {{ outline: 2px solid var(--mark); }}\n"
        for i in range(len(heads))
    )
    count = len(board.tasks)
    grid = (
        f".board .line {{ grid-template-columns: 10rem 5.5rem 6rem 6rem repeat({count}, 9.5rem); }}\n"
        "@media print { .board .lines { min-width: 0; } "
        f".board .line {{ grid-template-columns: 7rem 4rem 4rem 4rem repeat({count}, minmax(0, 1fr)); }} }}"
    )
    labels = "".join(
        f'<div role="columnheader"><label class="h{index}" for="by{index}">{escape(head)}</label></div>'
        for index, head in enumerate(heads)
    )
    table = (
        f'<div class="board">{buttons}<div class="scroll"><div class="lines" role="table">'
        f'<div class="line head" role="row">{labels}</div>{"".join(_lines(board))}</div></div></div>'
    )
    notes = [
        f"Median of the seeds (lowest – highest) at the training length; a frame where every one has {SOLVED:g}. "
        f"A dash is no better than the task's floor. Beyond: the longest length up to which every seed has {SOLVED:g}. "
        f"Rates: how wide the window is in which one seed of the search has {WORKS:.0%} of the best rate's accuracy. "
        f"After: the training tokens by which the median of the seeds first has {SOLVED:g} of the validations.",
        *board.notes,
        *controls(board),
        comparisons(board),
        "Choose a column's head to sort by it.",
    ]
    style = f"<style>{CSS}{grid}\n{chosen}.board .head {{ order: -1 !important; }}</style>"
    return page.page(
        TITLE, board.count, [style, page.notes(notes), table], [asdict(cell) for cell in board.by_square.values()]
    )


def tokens_label(tokens: int) -> str:
    """Tokens as a square shows them.

    >>> tokens_label(614_400)
    '0.61M tokens'
    """
    return f"{tokens / 1e6:.2f}M tokens"


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def picture(board: Board) -> Figure:
    """Models by tasks: the median of each cell, as dark as it is above the task's floor; empty where it was not run."""
    squares = {
        place: Square(board.share(cell), _median(board, cell), _shortest(cell.accuracies), is_solved(cell))
        for place, cell in board.by_square.items()
    }
    is_full = max(len(board.tasks), len(board.models)) > MANY
    shown = "board.html has the numbers of so many" if is_full else "median of the seeds (lowest – highest)"
    notes = [
        f"{board.count}; {shown} at the training length.",
        f"{DASH} is no better than the task's floor; an empty square was not run.",
        *board.notes,
        *controls(board),
    ]
    shades = {"the task's floor": 0.0, "half way": 0.5, "all right": 1.0}
    axes = ("task", "model")
    return heat_figure(squares, board.tasks, board.models, axes, shades, TITLE, notes, f"{SOLVED:g} on every seed")


def is_solved(cell: Cell) -> bool:
    """Whether several seeds were trained, and each has `SOLVED` at the training length."""
    return len(cell.accuracies) > 1 and min(cell.accuracies) >= SOLVED


def _median(board: Board, cell: Cell) -> str:
    return f"{median(cell.accuracies):.3f}" if board.is_learned(cell) else DASH


def _shortest(values: Sequence[float]) -> str:
    """The range of several seeds, as short as it can be; nothing for one."""
    ends = [f"{end:.3f}".removeprefix("0") for end in (min(values), max(values))]
    return DASH.join(ends) if len(values) > 1 else ""


def _lines(board: Board) -> Iterator[str]:
    """A line a model, with its place in the order of each column."""
    places = [_places(column) for column in _columns(board)]
    cells = board.by_square
    for at, model in enumerate(board.models):
        own = [cell for (_, name), cell in cells.items() if name == model]
        order = "; ".join(f"--o{index}: {column[at]}" for index, column in enumerate(places))
        costs = [ends(getattr(cell, cost) for cell in own) for cost in COST_HEADS]
        squares = (_square(board, task, model) for task in board.tasks)
        heads = [f'<div role="rowheader">{escape(model)}</div>', *(f'<div role="cell">{cost}</div>' for cost in costs)]
        yield f'<div class="line" role="row" style="{order}">{"".join((*heads, *squares))}</div>'


def _columns(board: Board) -> Iterator[list[tuple[float, str]]]:
    """The sort keys of the models for each column: the lowest cost first, the highest accuracy first.

    Models that were not run come last, and equal ones are sorted by name.
    """
    cells, models = board.by_square, board.models
    yield [(0.0, model) for model in models]
    for cost in COST_HEADS:
        known = grouped((cell.model, number) for cell in cells.values() if (number := getattr(cell, cost)) is not None)
        yield [(min(known.get(model, [math.inf])), model) for model in models]
    for task in board.tasks:
        shares = {model: board.share(cell) for (of_task, model), cell in cells.items() if of_task == task}
        yield [(-shares[model] if model in shares else math.inf, model) for model in models]


def _places(column: Sequence[tuple[float, str]]) -> list[int]:
    order = sorted(range(len(column)), key=column.__getitem__)
    return [order.index(index) for index in range(len(column))]


def _square(board: Board, task: str, model: str) -> str:
    cell = board.by_square.get((task, model))
    if cell is None:
        what = "+mixer" if model in board.mixers else "model"
        typed = [board.typed[key] for key in (("task", task), ("model", model)) if key in board.typed]
        command = escape(" ".join([board.command, *typed, f"task={task}", f"{what}={model}"]))
        return f'<div class="not-run" role="cell">not run <code>{command}</code></div>'
    solved = " solved" if is_solved(cell) else ""
    lines = [range_of(cell.accuracies) if len(cell.accuracies) > 1 else "one seed"]
    if (longest := reach(cell)) is not None and longest > cell.train_length:
        lines.append(f"beyond: {longest:,}")
    if board.is_learned(cell) and (decades := window(cell, board.floor(cell))) is not None:
        lines.append(f"rates: {f'{decades:.1f} decades' if decades else 'one'}")
    if cell.tokens_to_solve is not None:
        lines.append(f"{SOLVED:g} after {tokens_label(cell.tokens_to_solve)}")
    small = "".join(f"<small>{escape(line)}</small>" for line in lines)
    shade = f"--share: {40 * board.share(cell):.0f}%"
    return f'<div class="run{solved}" role="cell" style="{shade}"><b>{_median(board, cell)}</b>{small}</div>'


def range_of(values: Sequence[float]) -> str:
    """The lowest and the highest of several seeds, in brackets."""
    return f"({min(values):.3f} – {max(values):.3f})"


def ends(numbers: Iterable[int | None]) -> str:
    """The least and the most of them that are known, as a table shows them; a dash for none."""
    known = sorted({number for number in numbers if number is not None})
    return " – ".join(f"{number:,}" for number in dict.fromkeys((known[0], known[-1]))) if known else DASH
