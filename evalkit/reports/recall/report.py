"""The report of a recall evaluation, from its rows alone: `results.json`, four figures, an HTML page, tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from rich.console import Console
from rich.text import Text

from evalkit.core.rows import Row
from evalkit.record.files import write_results, write_text
from evalkit.record.recall_rows import DRIFT_UNDONE, FORGETTING_UNDONE, NOTHING_UNDONE
from evalkit.reports import page
from evalkit.reports.canvas import INK, STYLE, canvas, legend, length_axis
from evalkit.reports.curves import COLOURS, draw, extrapolation_figure
from evalkit.reports.recall.summary import channels, curves, decayed, restored_curves, summarise
from evalkit.reports.terminal import print_table

DASH = "–"
NOTE = "Solid: measured, a line a seed. Dashed: by the decay of the channels that carry the fact."
UNDONE = (
    "Undone: the other tokens' part (drift) or the fact's (forgetting) of each state as it was soon after the fact."
)
DRIFTED = "A line a seed: how far the other tokens have moved the state, in differences that the fact makes."


def report(folder: Path, rows: Sequence[Row], console: Console) -> dict[str, Any]:
    """Writes `results.json`, the figures and `report.html` into a folder; prints the tables."""
    summary = summarise(rows)
    title = f"{page.spoken(str(summary['task']))} · {summary['model']}"
    figures = {"distance": distance_figure(summary, f"{title}: by distance")}
    if summary["forgetting"]:
        figures["forgetting"] = forgetting_figure(summary, rows, f"{title}: what the state holds of the fact")
    if summary["drifts"]:
        figures["drift"] = drift_figure(summary, f"{title}: what moves the state meanwhile")
    if summary["restored"]:
        figures["restored"] = restored_figure(summary, f"{title}: what lost the answers")
    drawings = [page.figure(drawing, "") for drawing in draw(figures, folder).values()]
    write_results(folder, summary)
    shown = [table for table in tables(summary) if table[1]]
    parts = [page.notes(summary["notes"]), *drawings, *[page.table(*table) for table in shown]]
    write_text(folder / "report.html", page.page(title, "Recall of one planted fact", parts, summary))
    console.print(Text(title, style="bold"))
    for table in shown:
        print_table(console, *table)
    return summary


def tables(summary: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Headers and lines: accuracy within the window and beyond, where it is lost, which answers are, how long each
    block holds a fact."""
    reach = [
        [
            f"{found['before']:,}",
            found["reach"] if summary["window"] else "any",
            f"{found['median']:.3f}",
            f"{found['min']:.3f} {DASH} {found['max']:.3f}",
            str(found["seeds"]),
        ]
        for found in summary["by_reach"]
    ]
    half = [
        [f"{found['before']:,}", str(found["seed"]), "never" if found["distance"] is None else f"{found['distance']:,}"]
        for found in summary["half_way"]
    ]
    answers = [
        [
            f"{found['before']:,}",
            str(found["seed"]),
            f"{found['distance']:,}",
            ", ".join(map(str, found["lost"])) or "none",
            DASH if found["others"] is None else f"{found['others']:.3f}",
        ]
        for found in summary["by_answer"]
    ]
    kept = [
        [
            str(found["seed"]),
            str(found["block"] + 1),
            _tokens(found["predicted"], "no end"),
            _tokens(found["measured"], "longer than the contexts"),
            DASH if found["moved"] is None else f"{found['moved']:.1f}",
        ]
        for found in summary["forgetting"]
    ]
    return [
        (["tokens before the fact", "distance to the window", "accuracy", "range over seeds", "seeds"], reach),
        (["tokens before the fact", "seed", "half-way to chance at distance"], half),
        (["tokens before the fact", "seed", "distance", "answers lost", "accuracy of the others"], answers),
        (["seed", "at distance", "as it is", "drift undone", "forgetting undone", "in one block"], _restored(summary)),
        (["seed", "block", "tokens to 1/e, by its decay", "measured", "drift"], kept),
    ]


def _restored(summary: Mapping[str, Any]) -> list[list[str]]:
    """By seed at the furthest distance; the last column is the block whose forgetting, undone alone, restores most."""
    lines = []
    for seed in sorted({record["seed"] for record in summary["restored"]}):
        own = [record for record in summary["restored"] if record["seed"] == seed]
        last = max(record["distance"] for record in own)
        found = {(r["undone"], r["block"]): r["accuracy"] for r in own if r["distance"] == last}
        alone = {
            block: right for (what, block), right in found.items() if what == FORGETTING_UNDONE and block is not None
        }
        best = max(alone, key=lambda block: alone[block])
        whole = [f"{found[what, None]:.3f}" for what in (NOTHING_UNDONE, DRIFT_UNDONE, FORGETTING_UNDONE)]
        lines.append([str(seed), f"{last:,}", *whole, f"{best + 1}: {alone[best]:.3f}"])
    return lines


def distance_figure(summary: dict[str, Any], title: str) -> Figure:
    """Accuracy against the distance between fact and question, a line a number of tokens before the fact."""
    windows = [summary["window"]]
    figure = extrapolation_figure(
        curves(summary), summary["train_length"], windows, summary["chance"], title, summary["notes"]
    )
    figure.axes[0].set_xlabel("distance from the fact to the question (tokens)")
    return figure


def restored_figure(summary: dict[str, Any], title: str) -> Figure:
    """Accuracy against distance as it is, and with drift or forgetting undone."""
    notes = [*summary["notes"], UNDONE]
    found = restored_curves(summary)
    figure = extrapolation_figure(found, summary["train_length"], (), summary["chance"], title, notes)
    figure.axes[0].set_xlabel("distance from the fact to the question (tokens)")
    return figure


def forgetting_figure(summary: Mapping[str, Any], rows: Sequence[Row], title: str) -> Figure:
    """The difference that a fact makes to each block's state, by the tokens since: measured, and by its decay alone."""
    lines = _lines(summary["differences"])
    with matplotlib.rc_context(STYLE):
        figure, axes = _since_the_fact(title, [*summary["notes"], NOTE], lines)
        axes.set_ylabel("difference in the state, relative")
        for (block, seed), line in lines.items():
            own, first = channels(rows, seed, block), line[0][0]
            predicted = [decayed(own, distance - first) for distance, _ in line]
            axes.plot([x for x, _ in line], predicted, color=_colour(block), lw=0.9, dashes=(3, 2), alpha=0.7)
        return figure


def drift_figure(summary: Mapping[str, Any], title: str) -> Figure:
    """How far other tokens have moved each block's state, relative to the difference that a fact makes."""
    lines = _lines(
        [entry for entry in summary["drifts"] if entry["relative"] > 0]
    )  # not the first, from which it moves
    with matplotlib.rc_context(STYLE):
        figure, axes = _since_the_fact(title, [*summary["notes"], DRIFTED], lines)
        axes.set_ylabel("moved, in differences")
        axes.set_yscale("log")
        seen = [1.0, *(moved for line in lines.values() for _, moved in line)]
        axes.set_ylim(min(seen) / 1.5, max(seen) * 1.5)
        axes.yaxis.set_major_locator(LogLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
        axes.axhline(1, color=INK, lw=0.9, ls="dashed", zorder=1.6)
        return figure


Lines = Mapping[tuple[int, int], Sequence[tuple[int, float]]]
"""By block and seed: distances and what was found there."""


def _lines(found: Sequence[Mapping[str, Any]]) -> Lines:
    lines: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for entry in found:
        lines.setdefault((entry["block"], entry["seed"]), []).append((entry["distance"], entry["relative"]))
    return dict(sorted(lines.items()))


def _since_the_fact(title: str, notes: Sequence[str], lines: Lines) -> tuple[Figure, Axes]:
    """A figure against the tokens since the fact, a line a seed and a colour a block."""
    blocks = {block: f"block {block + 1}" for block, _ in lines}
    figure, axes = canvas(title, notes, list(blocks.values()))
    length_axis(axes, [distance for line in lines.values() for distance, _ in line])
    axes.set_xlabel("tokens since the fact")
    for (block, _), line in lines.items():
        axes.plot(*zip(*line, strict=True), color=_colour(block), lw=1.3, alpha=0.85)
    legend(axes, [Line2D([], [], color=_colour(block), lw=1.6, label=label) for block, label in blocks.items()])
    return figure, axes


def _colour(block: int) -> str:
    return COLOURS[block % len(COLOURS)]


def _tokens(number: float | None, otherwise: str) -> str:
    return otherwise if number is None else f"{number:,.0f}"
