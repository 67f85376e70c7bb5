"""`python -m evalkit calibrate NAME RESULTS.json`: results of any of lm-eval's models against the published ones."""

from collections.abc import Sequence

from evalkit.commands.guide import Page
from evalkit.core.errors import typed_path


def main(arguments: Sequence[str]) -> int:
    """Prints the checks of a results file that lm-eval wrote; returns 1 if one does not hold. Raises UserError."""
    from evalkit.evaluations.downstream import calibration

    parser = Page(
        "calibrate",
        "Hold results of any of lm-eval's models against the published ones; exit code 1 says that one differs.",
        "calibrate gemma-2b out/results_2026.json",
    )
    parser.add_argument("name", help=", ".join(calibration.PUBLISHED))
    parser.add_argument("results", type=typed_path, help="results_….json, of lm-eval's --output_path")
    parsed = parser.parse_args(arguments)
    checks = calibration.checks(parsed.name, calibration.read(parsed.results))
    print(calibration.shown(parsed.name, checks), end="")
    return 0 if all(check.holds for check in checks) else 1
