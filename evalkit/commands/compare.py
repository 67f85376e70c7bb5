"""`python -m evalkit compare RUN…`: overlays the curves of several runs of one task, with a table."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evalkit.commands.guide import Page


def main(arguments: Sequence[str]) -> int:
    """Writes the comparison and returns 0; raises UserError for runs that cannot be compared."""
    parser = Page(
        "compare",
        "Overlay the curves of several runs of one task, with a table.",
        "compare runs/induction_heads",
        "compare RUN RUN RUN --out figures/mine",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a folder that holds runs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/compare/<task>-<timestamp>")
    given = parser.parse_args(arguments)
    from evalkit.reports.comparison import compare

    compare(given.runs, given.out, Console())
    return 0
