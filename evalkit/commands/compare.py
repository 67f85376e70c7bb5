"""`python -m evalkit compare RUN…`: overlays the curves of several runs of one task, with a table."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from evalkit.commands.guide import Page
from evalkit.core.errors import UserError, typed_path
from evalkit.core.rows import Header


def main(arguments: Sequence[str]) -> int:
    """Writes the comparison and returns 0; raises UserError for runs that cannot be compared."""
    parser = Page(
        "compare",
        "Overlay the curves of several runs of one task, with a table.",
        "compare runs/induction_heads",
        "compare RUN RUN RUN --out figures/mine",
        "compare runs/induction_heads --x cache_bytes --at 1024",
        "compare runs/induction_heads --by tokens",
    )
    parser.add_argument("runs", nargs="+", type=typed_path, metavar="RUN", help="a run, or a folder that holds runs")
    parser.add_argument("--out", type=typed_path, metavar="DIR", help="default: runs/compare/<task>-<timestamp>")
    help_x = "draw accuracy against the bytes of the model's state, or its FLOPs a token, too"
    parser.add_argument("--x", choices=("cache_bytes", "flops"), help=help_x)
    parser.add_argument("--at", type=int, metavar="LENGTH", help="the length of --x, by default the training length")
    help_by = "what curves of training are drawn against: steps (default), tokens, flops or seconds"
    parser.add_argument("--by", choices=("steps", "tokens", "flops", "seconds"), default="steps", help=help_by)
    parsed = parser.parse_args(arguments)
    if parsed.at is not None and parsed.x is None:
        raise UserError(f"--at={parsed.at} is the length of --x=cache_bytes or --x=flops; give one of them too")
    from evalkit.reports.comparison import Against, compare

    against = None if parsed.x is None else Against(parsed.x, parsed.at)
    compare(parsed.runs, parsed.out, Console(), against=against, complete=_completed, by=parsed.by)
    return 0


def _completed(runs: Sequence[tuple[Path, Header]], length: int | None) -> Sequence[Header]:
    # Imported here, because it needs JAX, and only old records, whose headers lack a model's costs, need it.
    from evalkit.configuration.account import completed

    return completed(runs, length)
