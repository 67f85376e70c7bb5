"""Draws figures 1a and 9 from the runs of `experiment=fig1a` and `experiment=fig9`, and writes their tables as CSV.

    python -m evalkit experiment=fig1a data.path=FOLDER
    python studies/scaling/figures/draw.py compute runs/fig1a/cpu studies/scaling/figures
    python -m evalkit experiment=fig9 data.path=FOLDER
    python studies/scaling/figures/draw.py windows runs/fig9/cpu studies/scaling/figures

The loss is the last validation's, on the ends of the training books, which no training window touches. A run that is
not finished, or whose loss was not finite, is left out by name.

Figure 1a (`compute`) is validation loss against training compute, a line a family. Training takes three times the
forward pass, backwards included. Of each size the rate with the least loss counts; where that is the lowest or the
highest of its grid, a line says so, since a better one may lie outside. A line is `log L = a − b log C` by least
squares, and b has its 95 % interval by Student's t. It says how far the points are from a line, and nothing of other
seeds or rates.

Figure 9 (`windows`) is validation loss by training length, a line a family and window. The loss is at the length
trained on, so a longer length also means more context. MQA with a window has local attention alone.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter
from scipy import stats

from evalkit.core import studies
from evalkit.core.errors import UserError
from evalkit.core.rows import Header, read, value
from evalkit.core.tidy import as_csv
from evalkit.reports.canvas import GRID, STYLE
from evalkit.reports.curves import COLOURS, DASHES, MARKERS, save
from evalkit.reports.numbers import grouped
from evalkit.reports.pooling import find_runs

BACKWARD_TOO = 3
NAMES = {"griffin": "Griffin", "hawk": "Hawk", "mqa": "MQA"}


class Trained(NamedTuple):
    """One run: what it is, what its training computed, and its validation loss at the end, in nats a token."""

    family: str
    parameters: int
    rate: float
    seed: int
    flops: float
    loss: float


class Measured(NamedTuple):
    """One run: its family, the window of its attention (None: global), and its loss in nats a token."""

    family: str
    window: int | None
    length: int
    loss: float

    @property
    def label(self) -> str:
        """As the legend says it."""
        name = named(self.family)
        if self.window is None:
            return f"{name}, global"
        return f"{name}, window {self.window}" + (" alone" if self.family == "mqa" else "")


class Fit(NamedTuple):
    """`log L = intercept − exponent log C`, the exponent with its 95 % interval."""

    intercept: float
    exponent: float
    low: float
    high: float


def last_validation(folder: Path) -> tuple[Header, float]:
    """What a run is, and its loss at its last step, the mean over seeds; raises ValueError for one without it."""
    header, rows = read(folder)
    losses = [
        value(row)
        for row in rows
        if (row["split"], row["metric"], row["step"]) == ("validation", "loss", header.steps)
        and row["length"] == header.train_length
    ]
    if not losses:
        raise ValueError(f"{folder} has no validation at its last step; finish it with resume={folder}")
    return header, float(np.mean(losses))


def trained(folder: Path) -> Trained:
    """What the record of a finished run says; raises ValueError for one without a validation at its last step."""
    header, loss = last_validation(folder)
    config = studies.content(folder / "config.yaml")
    if not (header.steps and header.train_length and header.flops_per_token and header.parameters):
        raise ValueError(f"{folder} does not say what its training computed; train it with this version")
    train = config["train"]
    tokens = header.steps * train["batch_size"] * header.train_length
    flops = float(BACKWARD_TOO * header.flops_per_token * tokens)
    return Trained(header.model, header.parameters, train["learning_rate"], config["seed"], flops, loss)


def measured(folder: Path) -> Measured:
    """What the record of a finished run says; raises ValueError for one without a validation at its last step."""
    header, loss = last_validation(folder)
    if header.train_length is None:
        raise ValueError(f"{folder} does not say its training length; train it with this version")
    return Measured(header.model, header.window, header.train_length, loss)


def named(family: str) -> str:
    """A family as the paper writes it."""
    return NAMES.get(family, family)


def finished(runs: Path, reading: Callable[[Path], Any]) -> list[Any]:
    """What `reading` makes of each run below a folder; one that raises ValueError is left out by name."""
    found = []
    for folder in find_runs([runs]):
        try:
            found.append(reading(folder))
        except ValueError as error:
            print(f"left out: {error}")
    return found


def best(runs: Iterable[Trained]) -> list[Trained]:
    """Of each family, size and seed the run with the least loss, by family and compute."""
    found: dict[tuple[str, int, int], Trained] = {}
    for run in runs:
        key = run.family, run.parameters, run.seed
        found[key] = min(found.get(key, run), run, key=lambda one: one.loss)
    return sorted(found.values(), key=lambda run: (run.family, run.flops))


def at_an_edge(chosen: Iterable[Trained], every: Sequence[Trained]) -> list[Trained]:
    """Those whose rate is the lowest or the highest that was tried for their family and size."""
    found = []
    for run in chosen:
        rates = {other.rate for other in every if (other.family, other.parameters) == (run.family, run.parameters)}
        if run.rate in (min(rates), max(rates)):
            found.append(run)
    return found


def fit(runs: Sequence[Trained]) -> Fit:
    """The line through a family's points; raises ValueError for fewer than three, which have no interval."""
    if len(runs) < 3:
        raise ValueError(f"{len(runs)} sizes of {runs[0].family}; a line with an interval needs 3")
    line = stats.linregress(np.log([run.flops for run in runs]), np.log([run.loss for run in runs]))
    width = float(stats.t.ppf(0.975, len(runs) - 2)) * line.stderr
    return Fit(float(line.intercept), -float(line.slope), -float(line.slope) - width, -float(line.slope) + width)


def draw_compute(runs: Path, out: Path) -> None:
    """Writes every run and the fits as CSV, and figure 1a; prints the fits. Raises UserError if there are no runs."""
    every = finished(runs, trained)
    chosen = best(every)
    edges = at_an_edge(chosen, every)
    for run in edges:
        print(f"{run.family} of {run.parameters:,} parameters: the best rate, {run.rate:g}, is at an edge of its grid")
    families = {name: [run for run in chosen if run.family == name] for name in dict.fromkeys(r.family for r in chosen)}
    fits = {name: fit(points) for name, points in families.items()}
    out.mkdir(parents=True, exist_ok=True)
    (out / "compute.csv").write_text(
        as_csv([run._asdict() | {"chosen": run in chosen, "edge": run in edges} for run in every]), "utf-8"
    )
    (out / "compute_fits.csv").write_text(as_csv([{"family": k, **f._asdict()} for k, f in fits.items()]), "utf-8")
    for name, found in fits.items():
        print(f"{name}: loss falls as compute to the −{found.exponent:.3f} ({found.low:.3f} to {found.high:.3f})")
    save(_by_compute(families, fits), out / "compute.png")


def _by_compute(families: dict[str, list[Trained]], fits: dict[str, Fit]) -> Figure:
    """Points of the best rate, and the line of each family."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for index, (name, points) in enumerate(families.items()):
            flops = np.array([run.flops for run in points])
            found = fits[name]
            label = f"{named(name)}: compute to the −{found.exponent:.3f} ({found.low:.3f} to {found.high:.3f})"
            axes.plot(flops, [run.loss for run in points], "o", color=COLOURS[index], ms=5, label=label)
            axes.plot(flops, np.exp(found.intercept - found.exponent * np.log(flops)), color=COLOURS[index], lw=1.4)
        axes.set(xscale="log", yscale="log", xlabel="training compute (FLOP)", ylabel="validation loss (nats a token)")
        axes.grid(color=GRID, linewidth=0.6, which="both")
        for ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            ticks(FormatStrFormatter("%.1f"))
        figure.legend(loc="outside upper center", ncols=1, borderaxespad=1)
        return figure


def draw_windows(runs: Path, out: Path) -> None:
    """Writes every run as CSV, and figure 9. Raises UserError if there are no runs."""
    found = sorted(finished(runs, measured), key=lambda run: (run.family, run.window or 1 << 30, run.length))
    out.mkdir(parents=True, exist_ok=True)
    (out / "windows.csv").write_text(as_csv([run._asdict() for run in found]), "utf-8")
    save(_by_length(found), out / "windows.png")


def _by_length(found: Sequence[Measured]) -> Figure:
    """A colour and a dash a family, a marker a window."""
    lines = grouped((run.label, run) for run in found)
    families = sorted({run.family for run in found})
    windows = sorted({run.window or 1 << 30 for run in found})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        for label, points in lines.items():
            family, window = families.index(points[0].family), windows.index(points[0].window or 1 << 30)
            style = {"color": COLOURS[family], "marker": MARKERS[window], "linestyle": DASHES[family]}
            axes.plot([run.length for run in points], [run.loss for run in points], ms=5, label=label, **style)
        lengths = sorted({run.length for run in found})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
        axes.set(xlabel="training length (tokens)", ylabel="validation loss (nats a token)")
        axes.grid(color=GRID, linewidth=0.6)
        figure.legend(loc="outside upper center", ncols=2, borderaxespad=1, handlelength=3.5)
        return figure


FIGURES: Mapping[str, Callable[[Path, Path], None]] = {"compute": draw_compute, "windows": draw_windows}


def main() -> None:
    """Draws the figure that the command line names; what cannot be is one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("runs", type=Path, help="the folder of the experiment's runs")
    parser.add_argument("out", type=Path, help="where the tables and the figure are written")
    given = parser.parse_args()
    try:
        FIGURES[given.figure](given.runs, given.out)
    except (UserError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


if __name__ == "__main__":
    main()
