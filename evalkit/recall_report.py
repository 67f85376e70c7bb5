"""The report of a recall evaluation, from its rows alone: `results.json`, two figures, an HTML page, tables."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import Console
from rich.text import Text

from evalkit import page
from evalkit.canvas import STYLE, canvas, legend, length_axis, length_label, mark_chance, mark_lengths, raised
from evalkit.figures import COLOURS, MARKERS, PROBES, save, svg
from evalkit.recall_summary import pooled, summarise
from evalkit.rows import Row
from evalkit.terminal import print_table

DASH = "–"
DRAWN = 5  # lengths, one line each


def report(folder: Path, rows: Sequence[Row], console: Console) -> dict[str, Any]:
    """Writes `results.json`, `distance.png`, `forgetting.png` and `report.html` into a folder; prints the tables."""
    from evalkit.report import spoken, write_text  # which calls this

    summary = summarise(rows)
    title = f"{spoken(str(summary['task']))} · {summary['model']}"
    figures = {"distance": distance_figure(summary, f"{title}: by distance")}
    if summary["forgetting"]:
        figures["forgetting"] = forgetting_figure(summary, f"{title}: what the state holds of the fact")
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png")
    write_text(folder / "results.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    shown = [table for table in tables(summary) if table[1]]
    drawings = [page.figure(svg(figure, prefix=f"{name}-"), "") for name, figure in figures.items()]
    parts = [page.notes(summary["notes"]), *drawings, *[page.table(*table) for table in shown]]
    write_text(folder / "report.html", page.page(title, "Recall of one planted fact", parts, summary))
    console.print(Text(title, style="bold"))
    for table in shown:
        print_table(console, *table)
    return summary


def tables(summary: Mapping[str, Any]) -> list[tuple[list[str], list[list[str]]]]:
    """Headers and lines: accuracy within the window and beyond it, and how long each block holds a fact."""
    reach = [
        [
            f"{found['length']:,}",
            found["reach"] if summary["window"] else "any distance",
            f"{found['accuracy']:.3f}",
            f"{found['low']:.3f} {DASH} {found['high']:.3f}",
            f"{found['sequences']:,}",
        ]
        for found in summary["by_reach"]
    ]
    kept = [
        [str(found["seed"]), str(found["block"] + 1), _tokens(found["predicted"]), _tokens(found["measured"])]
        for found in summary["forgetting"]
    ]
    return [
        (["length", "distance to the window", "accuracy", "95% interval", "sequences"], reach),
        (["seed", "block", "tokens to 1/e, by its decay", "measured"], kept),
    ]


def distance_figure(summary: Mapping[str, Any], title: str) -> Figure:
    """Accuracy against the distance between fact and question, a line a length of context, all seeds together."""
    records = summary["recalled"]
    lengths = sorted({record["length"] for record in records})
    drawn = lengths[:: max(1, math.ceil(len(lengths) / DRAWN))][-DRAWN:]
    drawn = sorted({*drawn, *lengths[-1:]})[-DRAWN:]
    marks = [(summary["window"], f"window {length_label(summary['window'])}", "dotted")] if summary["window"] else []
    if summary["train_length"]:
        marks.append((summary["train_length"], f"trained at {length_label(summary['train_length'])}", "dashed"))
    with matplotlib.rc_context(STYLE):
        keys = [f"at {length_label(length)} tokens" for length in drawn]
        figure, axes = canvas(title, summary["notes"], keys, labels=len(marks))
        length_axis(axes, [record["distance"] for record in records])
        axes.set_xlabel("distance from the fact to the question (tokens, at most)")
        mark_chance(axes, summary["chance"])
        mark_lengths(axes, sorted(marks))
        lines = []
        for index, length in enumerate(drawn):
            points = []
            for distance in sorted({record["distance"] for record in records if record["length"] == length}):
                there = [r for r in records if r["length"] == length and r["distance"] == distance]
                points.append((distance, pooled(there)))
            colour, marker = PROBES[index % len(PROBES)], MARKERS[index % len(MARKERS)]
            x = [distance for distance, _ in points]
            style = {"color": colour, "zorder": 3 + 0.1 * index}
            axes.plot(x, [p["accuracy"] for _, p in points], marker=marker, ms=4, mec="white", mew=0.5, lw=1.5, **style)
            low, high = [p["low"] for _, p in points], [p["high"] for _, p in points]
            axes.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
            lines.append(
                Line2D([], [], color=colour, marker=marker, ms=4, mec="white", lw=1.5, label=raised(keys[index]))
            )
        legend(axes, lines, len(marks))
        return figure


def forgetting_figure(summary: Mapping[str, Any], title: str) -> Figure:
    """The difference that a fact makes to each block's state, by the tokens since: measured, and by its decay alone."""
    found = summary["differences"]
    seeds = sorted({entry["seed"] for entry in found})
    blocks = sorted({entry["block"] for entry in found})
    note = "Solid: measured. Dashed: exp(−δ d), with the decay δ of the channels that carry the fact."
    with matplotlib.rc_context(STYLE):
        figure, axes = canvas(title, [*summary["notes"], note], [f"block {block + 1}" for block in blocks])
        length_axis(axes, [entry["distance"] for entry in found])
        axes.set_xlabel("tokens since the fact")
        axes.set_ylabel("difference in the state, relative")
        keys = []
        for index, block in enumerate(blocks):
            colour = COLOURS[index % len(COLOURS)]
            for seed in seeds:
                line = [(e["distance"], e["relative"]) for e in found if (e["seed"], e["block"]) == (seed, block)]
                axes.plot(*zip(*line, strict=True), color=colour, lw=1.4, alpha=0.9)
                predicted = next(
                    e["predicted"] for e in summary["forgetting"] if (e["seed"], e["block"]) == (seed, block)
                )
                if predicted:
                    first = line[0][0]
                    decayed = [math.exp(-(distance - first) / predicted) for distance, _ in line]
                    axes.plot([x for x, _ in line], decayed, color=colour, lw=0.9, dashes=(3, 2), alpha=0.8)
            keys.append(Line2D([], [], color=colour, lw=1.6, label=f"block {block + 1}"))
        legend(axes, keys)
        return figure


def _tokens(number: float | None) -> str:
    return "longer than measured" if number is None else f"{number:,.0f}"
