"""Accuracy by length and by training step: the tables, figures and CSV of one run or of several."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

from evalkit.core.errors import UserError
from evalkit.core.statistics import holm, least_p, scaled, two_sided
from evalkit.evaluations.extrapolation import effective
from evalkit.evaluations.extrapolation.summary import LEVELS, extrapolation_curve, learning_curve, probe_lengths
from evalkit.evaluations.extrapolation.summary import summarise as summarise
from evalkit.reports.along import WORDS, along, omitted
from evalkit.reports.canvas import length_label
from evalkit.reports.curves import cost_figure, frame_of, length_figure, seed_figure
from evalkit.reports.kinds import COSTS, Drawing, Table, by_column, costs_of
from evalkit.reports.numbers import DASH, Curve, between, grouped, shown
from evalkit.reports.pooling import Line

LEVEL = "0.99"
OF_ONE = LEVELS[2:]
"""What the table of a single run shows of its levels."""
LOSS = ".3g"
BY_LENGTH, TRAINING = "Accuracy by evaluation length", "While training"
EFFECTIVE = "Effective length: up to which accuracy keeps a share of that at the training length"
OFTEN_RIGHT = 0.1
"""A guess that is right as often as this makes an accuracy hard to read."""
SCALED = "Scaled accuracy: 0 for a guess, 1 where all is right"
BY_POSITION = "Accuracy by position in sequences of"
SPREAD = "Median and range over seeds; a single seed with its 95% interval."
OF_COSTS = "A point a model: median and range over seeds; a single seed with its 95% interval."
TESTS = "Which is higher, by the exact two-sided test of Mann and Whitney over seeds"
VALIDATION = "Validation accuracy at the training length while training."
COLUMNS = ("seed", "length", "accuracy", "low", "high", "exact_match", "loss", "sequences")


def figures(lines: Sequence[Line], title: str, notes: Sequence[str]) -> dict[str, Drawing]:
    """Accuracy against length (fig. 6b's axes), and against training steps (fig. 6a's), at longer lengths too."""
    frame = frame_of(line.header for line in lines)
    ladders = [extrapolation_curve(line.record).relabel(line.label) for line in lines]
    ladder = length_figure([curve for curve in ladders if curve.seeds or len(lines) > 1], frame, title, notes)
    extrapolation = Drawing(BY_LENGTH, SPREAD, ladder)
    learning, named = frame.while_training(WORDS[lines[0].by]), f"{title} while training"
    notes = [*notes, *omitted(lines)]
    curves = [along(learning_curve(line.record), line).relabel(line.label) for line in lines]
    if lines[0].alone:
        trained = _at(curves[0], lines[0].header.train_length, " (training length)")
        probes = [_at(learning_curve(lines[0].record, at), at) for at in probe_lengths(lines[0].record)]
        figure = seed_figure([trained], learning, named, notes, [probe for probe in probes if probe.seeds])
        return {"extrapolation": extrapolation, "training": Drawing(TRAINING, VALIDATION, figure)}
    drawn = {"learning": Drawing(TRAINING, VALIDATION, seed_figure(curves, learning, named, notes))}
    # The lengths beside the training length that every run of a line looked at while training.
    probed = [set.intersection(*(set(probe_lengths(run.record)) for run in line.runs)) for line in lines]
    for at in sorted(set().union(*probed)):
        looked = [along(learning_curve(line.record, at), line).relabel(line.label) for line in lines]
        figure = seed_figure(looked, learning, f"{title} at {length_label(at)} while training", notes)
        drawn[f"growth-{at}"] = Drawing(TRAINING, f"The same at {at:,} tokens.", figure)
    return {"compare": extrapolation, **drawn}


def against(lines: Sequence[Line], x: str, at: int, title: str, notes: Sequence[str]) -> Drawing:
    """Accuracy at the length `at` against bytes of state or FLOPs a token; raises UserError where either is unknown."""
    ladders = {line.label: extrapolation_curve(line.record) for line in lines}
    measured = {point.x for curve in ladders.values() for points in curve.seeds.values() for point in points}
    if at not in measured:
        raise UserError(f"--at={at}: nothing was measured there; measured: {', '.join(map(str, sorted(measured)))}")
    of_state = x == "cache_bytes"
    costs = {line.label: line.header.state_bytes(at) if of_state else line.header.flops_per_token for line in lines}
    unknown = [label for label, cost in costs.items() if cost is None]
    if len(unknown) == len(lines):
        raise UserError(f"--x={x} is known of none of these runs, whose configurations cannot be built; leave it out")
    curves = []
    for label, curve in ladders.items():
        if (cost := costs[label]) is not None:
            seeds = {seed: [replace(p, x=cost) for p in points if p.x == at] for seed, points in curve.seeds.items()}
            curves.append(replace(curve, label=label, seeds={seed: points for seed, points in seeds.items() if points}))
    words = f"state of one sequence of {at:,} tokens" if of_state else "FLOPs a token, at the training length"
    omitted = [f"Left out, for what it costs is not known: {', '.join(unknown)}."] if unknown else []
    frame = frame_of([line.header for line in lines], words, f"accuracy at {at:,} tokens")
    figure = cost_figure(curves, frame, "B" if of_state else "", title, [*notes, *omitted])
    return Drawing(f"Accuracy at {at:,} tokens against cost", OF_COSTS, figure)


def tables(lines: Sequence[Line]) -> list[Table]:
    """For one run tables by length and by seed; for several one row per line and one column per length."""
    if not lines[0].alone:
        return [
            comparison_table(lines),
            *scaled_tables(lines),
            *effective_tables(lines),
            *span_tables(lines),
            *learning_tables(lines),
            *test_tables(lines),
        ]
    summary = summarise(lines[0].record)
    further = (*scaled_tables(lines), *effective_tables(lines), *span_tables(lines))
    return [ladder_table(summary), *further, steps_table(summary)]


def records(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """A record a run, length and seed."""
    return [
        {"run": run.header.run, "model": line.label, **{name: record[name] for name in COLUMNS}}
        for line in lines
        for run in line.runs
        for record in summarise(run.record)["extrapolation"]
    ]


def comparison_table(lines: Sequence[Line]) -> Table:
    """A row a line of the figure, a column a length: median accuracy over seeds, and how many where not all have it."""
    rows = []
    for line in lines:
        summary = summarise(line.record)
        skipped = {entry["length"]: "not run" for entry in summary["not_run"]}
        medians = {
            at["length"]: shown(at["accuracy"]["median"]) + _of_seeds(at["accuracy"]["seeds"], len(line.seeds))
            for at in summary["aggregate"]["extrapolation"]
        }
        facts = [line.label, *costs_of(line.header), str(len(line.seeds)), _steps_to_level(summary)]
        rows.append((facts, skipped | medians))
    lengths = sorted({length for _, measured in rows for length in measured})
    cells = [[*facts, *(measured.get(length, DASH) for length in lengths)] for facts, measured in rows]
    return Table(BY_LENGTH, ["model", *COSTS, "seeds", "steps to 99%", *map(length_label, lengths)], cells)


def ladder_table(summary: Mapping[str, Any]) -> Table:
    """A row a length: with one seed its 95% interval, with several their median and range."""
    one = len({record["seed"] for record in summary["extrapolation"]}) <= 1
    intervals = {record["length"]: (record["low"], record["high"]) for record in summary["extrapolation"]}
    cells = {entry["length"]: ["not run", "", "", "", ""] for entry in summary["not_run"]}
    for record in summary["aggregate"]["extrapolation"]:
        accuracy = record["accuracy"]
        cells[record["length"]] = [
            shown(accuracy["median"]),
            between(*intervals[record["length"]] if one else (accuracy["min"], accuracy["max"])),
            shown(record["exact_match"]["median"]),
            f"{record['sequences']:,g}",
            shown(record["loss"]["median"], LOSS),
        ]
    spread = "95% interval" if one else "range over seeds"
    lines = [[_length(length, summary["train_length"]), *cells[length]] for length in sorted(cells)]
    return Table(BY_LENGTH, ["length", "accuracy", spread, "exact match", "sequences", "loss"], lines)


def scaled_tables(lines: Sequence[Line]) -> list[Table]:
    """One row per line and one column per length, the median over seeds; no table where guesses are seldom right."""
    rows: dict[str, dict[int, str]] = {}
    for line in lines:
        chance, measured = line.header.chance or 0.0, summarise(line.record)["aggregate"]["extrapolation"]
        if OFTEN_RIGHT <= chance < 1:
            medians = {at["length"]: at["accuracy"]["median"] for at in measured}
            rows[line.label] = {x: shown(None if y is None else scaled(y, chance)) for x, y in medians.items()}
    return [by_column(SCALED, "model", rows)] if rows else []


def effective_tables(lines: Sequence[Line]) -> list[Table]:
    """One row per line: its effective length for each share, over its seeds; no table if no line has one."""
    cells = []
    for line in lines:
        lengths = summarise(line.record)["aggregate"]["effective_length"].values()
        if any(at["length"] is not None for at in lengths):
            shown_lengths = [text for at in lengths for text in (effective.shown(at), effective.interval_shown(at))]
            cells.append([line.label, *shown_lengths])
    header = ["model", *(text for kept in effective.KEPT for text in (f"{kept:.0%} kept to", "95% interval"))]
    return [Table(EFFECTIVE, header, cells)] if cells else []


def span_tables(lines: Sequence[Line]) -> list[Table]:
    """One row per line and one column per span, with the median over seeds; no table without spans.

    All lines are shown at the longest length that they share; if they share none, each is shown at its own longest.
    """
    spans = {line.label: summarise(line.record).get("spans", []) for line in lines}
    lengths = {label: {span["length"] for span in own} for label, own in spans.items() if own}
    shared = set.intersection(*lengths.values()) if lengths else set[int]()
    tables: dict[int, dict[str, dict[int, str]]] = {}
    for label, own in lengths.items():
        at = max(shared or own)
        by_last = grouped((span["last"], span["accuracy"]) for span in spans[label] if span["length"] == at)
        cells = {last: shown(median(values)) for last, values in by_last.items() if None not in values}
        tables.setdefault(at, {})[label] = cells
    return [by_column(f"{BY_POSITION} {at:,} tokens", "positions up to", rows) for at, rows in sorted(tables.items())]


def steps_table(summary: Mapping[str, Any]) -> Table:
    """A row a seed: steps to the upper levels at the training length, and the last validation."""
    header = ["seed", *[f"steps to {level:.0%}" for level in OF_ONE], "last accuracy", "last loss", "at step"]
    lines = []
    for seed in summary["seeds"]:
        if last := seed["validation"]:
            steps = [_steps(seed["steps_to"][str(level)], last["step"]) for level in OF_ONE]
            final = [shown(last["accuracy"]), shown(last["loss"], LOSS), f"{last['step']:,}"]
            lines.append([str(seed["seed"]), *steps, *final])
    return Table(TRAINING, header, lines)


def learning_tables(lines: Sequence[Line]) -> list[Table]:
    """One row per line: the median steps to each level over seeds; no table without validations.

    The table has the area under the curve only if all lines were validated over the same steps.
    """
    cells, spans = [], set[tuple[float, float]]()
    for line in lines:
        summary = summarise(line.record)
        if (area := summary["aggregate"]["area"])["seeds"]:
            steps = [_steps_to_level(summary, str(level)) for level in LEVELS]
            cells.append([line.label, *steps, f"{shown(area['median'])} ({between(area['min'], area['max'])})"])
            spans |= {(points[0].x, points[-1].x) for points in learning_curve(line.record).seeds.values()}
    header = ["model", *[f"steps to {level:.0%}" for level in LEVELS], "area under the curve"]
    if len(spans) > 1:  # areas over different steps do not compare
        header, cells = header[:-1], [cell[:-1] for cell in cells]
    return [Table(TRAINING, header, cells)] if cells else []


def test_tables(lines: Sequence[Line]) -> list[Table]:
    """A row a pair of lines of several seeds, at the furthest length that both have; the higher median stands first.

    Every p-value is adjusted for the number of pairs, after Holm, and so is the least that so many seeds can give.
    """
    rungs = {line.label: _rungs(line) for line in lines if len(line.seeds) > 1}
    cells, p_values, least = [], [], []
    for pair in combinations(rungs, 2):
        shared = set.intersection(*(set(rungs[label]) for label in pair))
        if shared:
            at = max(shared)
            accuracies = {label: rungs[label][at] for label in pair}
            high, low = sorted(pair, key=lambda label: -median(accuracies[label]))
            apart = median(accuracies[high]) - median(accuracies[low])
            p_values.append(two_sided(accuracies[high], accuracies[low]))
            least.append(least_p(len(accuracies[high]), len(accuracies[low])))
            cells.append([high, low, length_label(at), shown(apart)])
    lowest = (min(1.0, one * len(cells)) for one in least)
    for cell, p, of_seeds in zip(cells, holm(p_values), lowest, strict=True):
        cell += [shown(p, ".2g"), shown(of_seeds, ".2g")]
    header = ["higher", "lower", "at length", "difference of medians", "p", "least p of so many seeds"]
    pairs = f"{TESTS}, adjusted for {len(cells)} pairs" if len(cells) > 1 else TESTS
    return [Table(pairs, header, cells)] if cells else []


def _rungs(line: Line) -> dict[int, list[float]]:
    """The accuracies of the seeds by length, where every seed has one."""
    by_length = grouped(
        (record["length"], record["accuracy"])
        for record in summarise(line.record)["extrapolation"]
        if record["accuracy"] is not None
    )
    return {length: values for length, values in by_length.items() if len(values) == len(line.seeds)}


def _at(curve: Curve, length: int | None, more: str = "") -> Curve:
    return curve.relabel(f"at {length_label(length)}{more}") if length else curve


def _steps_to_level(summary: Mapping[str, Any], level: str = LEVEL) -> str:
    """Median steps to a level, or the bound where most seeds did not get there; how many did, where not all."""
    reached, seeds = summary["aggregate"]["steps_to"][level], summary["seeds"]
    middle, got = reached["median"], reached["seeds"]
    last = min((seed["validation"]["step"] for seed in seeds if seed["validation"]), default=None)
    return _steps(None if middle is None else round(middle), last) + _of_seeds(got, len(seeds))


def _of_seeds(measured: int, seeds: int) -> str:
    """Of how many seeds a median is, where not of all."""
    return "" if measured in (0, seeds) or not seeds else f" ({measured} of {seeds} seeds)"


def _steps(reached: int | None, last: int | None) -> str:
    """Steps to a level; "> last" where it was not reached by the last validation."""
    return f"> {last:,}" if reached is None and last is not None else shown(reached, ",")


def _length(length: int, trained: int | None) -> str:
    label = f"{length:,}" if length < 2**20 else f"{length:,} ({length_label(length)})"
    return f"{label} (trained)" if length == trained else label
