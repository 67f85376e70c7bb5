"""Draws figure 9 from the runs of `experiment=fig9`: validation loss by training length, a line a family and window.

    python -m evalkit experiment=fig9 data.path=FOLDER
    python studies/scaling/figures/windows.py runs/fig9/cpu studies/scaling/figures

The loss is the last validation's, on the ends of the training books, at the length trained on. So a longer length also
means more context. MQA with a window has local attention alone. A run that is not finished is left out by name.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from compute import command, finished, last_validation, named
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evalkit.core.tidy import as_csv
from evalkit.reports.canvas import GRID, STYLE
from evalkit.reports.curves import COLOURS, DASHES, MARKERS, save
from evalkit.reports.numbers import grouped


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


def measured(folder: Path) -> Measured:
    """What the record of a finished run says; raises ValueError for one without a validation at its last step."""
    header, loss = last_validation(folder)
    if header.train_length is None:
        raise ValueError(f"{folder} does not say its training length; train it with this version")
    return Measured(header.model, header.window, header.train_length, loss)


def main(runs: Path, out: Path) -> None:
    """Writes every run as CSV, and the figure. Raises UserError if there are no runs."""
    found = sorted(finished(runs, measured), key=lambda run: (run.family, run.window or 1 << 30, run.length))
    out.mkdir(parents=True, exist_ok=True)
    (out / "windows.csv").write_text(as_csv([run._asdict() for run in found]), "utf-8")
    save(_figure(found), out / "windows.png")


def _figure(found: Sequence[Measured]) -> Figure:
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


if __name__ == "__main__":
    command(__doc__, main)
