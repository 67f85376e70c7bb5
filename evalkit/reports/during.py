"""What whole evaluations while training come to: curves by step, and the values at some steps."""

from collections.abc import Mapping, Sequence

from evalkit.core.during import curves
from evalkit.reports.along import WORDS, along, omitted
from evalkit.reports.curves import COLOURS, Frame, seed_figure
from evalkit.reports.kinds import Drawing, Table, by_column
from evalkit.reports.numbers import Curve, Point
from evalkit.reports.pooling import Line

HEADING = "Evaluated while training"
LOSS = "loss@"
PARTS = ("inside", "outside")
"""The groups of a lookup's prompts: whether the answer lies in the window of the model's attention."""
RIGHT = ("acc", "exact_match", "digit_accuracy", "found", "all_found")
COLUMNS = 8
"""At how many steps, at most, the table has the values."""
Steps = Mapping[int, float]


def figures(lines: Sequence[Line], title: str, notes: Sequence[str], same: bool) -> dict[str, Drawing]:
    """Loss at some positions by step, and shares of right answers; none where nothing was evaluated.

    Several lines are drawn at the longest position alone, each in its colour; their losses only where their tokens are
    the `same`.
    """
    known = [(line, curves(line.record.rows)) for line in lines]
    losses = [
        _drawn(line, name, seeds)
        for line, named in known
        for name, seeds in (_losses(named, line.alone) if same else {}).items()
    ]
    shares = [_drawn(line, name, seeds) for line, named in known for name, seeds in _shares(named).items()]
    drawn = {}
    for name, made, frame, caption in (
        ("during_loss", losses, Frame(y="mean loss (nats a token)", scale="fitted"), "Loss at positions of windows."),
        ("during_shares", shares, Frame(y="share of right answers"), "What was asked while the model trained."),
    ):
        more = len(made) - len(COLOURS)
        left_out = [f"{more} more curves are in the table and in metrics.jsonl"] if more > 0 else []
        if any(len(points) > 1 for curve in made for points in curve.seeds.values()):
            figure = seed_figure(
                made[: len(COLOURS)],
                frame.while_training(WORDS[lines[0].by]),
                f"{title}: while training",
                [*notes, *omitted(lines), *left_out],
            )
            drawn[name] = Drawing(HEADING, caption, figure)
    return drawn


def tables(lines: Sequence[Line]) -> list[Table]:
    """The median over seeds of every curve, at some steps."""
    cells: dict[str, dict[int, str]] = {}
    for line in lines:
        for name, seeds in _worth_a_line(curves(line.record.rows)).items():
            label = name if line.alone else f"{line.label}, {name}"
            across = _curve(label, seeds).over_seeds()
            cells[label] = {step: f"{middle:.4f}" for step, middle, *_ in _spread(across)}
    return [by_column(HEADING, "measure at step", cells, label="{:,}".format)] if cells else []


def _worth_a_line(named: Mapping[str, Mapping[int, Steps]]) -> dict[str, Mapping[int, Steps]]:
    """The curves that the table shows: losses at powers of two, and scores over all prompts."""
    octaves = _losses(named, alone=True)
    parts = tuple(f"/{part}" for part in PARTS)
    return {
        name: seeds
        for name, seeds in named.items()
        if (name in octaves or not name.startswith(LOSS)) and not name.endswith(parts)
    }


def _spread(points: Sequence[tuple[int, float, float, float]]) -> list[tuple[int, float, float, float]]:
    """At most `COLUMNS` of the points, evenly spaced, with the last one."""
    every = -(-len(points) // COLUMNS)
    return list(reversed(points[::-1][:: max(1, every)]))


def _losses(named: Mapping[str, Mapping[int, Steps]], alone: bool) -> dict[str, Mapping[int, Steps]]:
    """The curves of loss at powers of two, the longest last; of several lines the longest one alone."""
    positions = sorted(int(name.removeprefix(LOSS)) for name in named if name.startswith(LOSS))
    octaves = [at for at in positions if at.bit_count() == 1 and at > 1] or positions
    shown = octaves[-len(COLOURS) :] if alone else octaves[-1:]
    return {f"{LOSS}{at}": named[f"{LOSS}{at}"] for at in shown}


def _shares(named: Mapping[str, Mapping[int, Steps]]) -> dict[str, Mapping[int, Steps]]:
    """The curves of shares of right answers, recognised by the metric names of lookups and lm-eval."""
    metrics = {name: name.partition("@")[0].partition("/")[2] or name.partition("@")[0] for name in named}
    return {name: seeds for name, seeds in _worth_a_line(named).items() if metrics[name].startswith(RIGHT)}


def _drawn(line: Line, name: str, seeds: Mapping[int, Steps]) -> Curve:
    shown = name.replace(LOSS, "position ")
    return along(_curve(shown if line.alone else f"{line.label}, {shown}", seeds), line)


def _curve(label: str, seeds: Mapping[int, Steps]) -> Curve:
    return Curve(label, {seed: [Point(*at) for at in sorted(steps.items())] for seed, steps in seeds.items()})
