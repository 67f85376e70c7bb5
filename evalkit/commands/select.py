"""`python -m evalkit select FOLDER`: which trial of a search its protocol chooses, model by model."""

from collections.abc import Sequence

from evalkit.commands.guide import Page
from evalkit.core.errors import typed_path

RULE = """\
Say which trial of a search its protocol chooses, model by model.

Only validation at the training length counts. The trial with the fewest tokens to `--level` of the answers is chosen.
Among trials within a tenth of the fewest, the lowest loss at the end decides. Trials that did not reach the level rank
behind, by that loss. Those that did not finish, ended without a finite loss or skipped a step for that come last."""


def main(arguments: Sequence[str]) -> int:
    """Prints a table a model, writes `selection.json` and returns 0; raises UserError for a folder without trials."""
    from evalkit.evaluations.extrapolation.summary import LEVELS
    from evalkit.session import selection

    parser = Page("select", RULE, "select runs/fig6b_search/cpu", "select runs/fig6b_search/cpu --level 0.9")
    parser.add_argument("folder", type=typed_path, help="of a search: a folder a trial")
    parser.add_argument("--level", type=float, choices=LEVELS, default=1.0, help="what the fewest tokens are to reach")
    parsed = parser.parse_args(arguments)
    selection.write(parsed.folder, parsed.level)
    return 0
