"""`python -m evalkit archive RUN FOLDER`: a run small enough to be kept beside its results."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.commands.guide import Page

PURPOSE = """\
Keep the record and the last parameters of a finished run: small enough to lie beside its results.
With --step its parameters are those of that step; its record stays that of the whole training.
evaluate=FOLDER, evalkit.load(FOLDER) and compare read it as they read the run; resuming takes the run itself."""


def main(arguments: Sequence[str]) -> int:
    """Writes the archive and returns 0; raises UserError for what cannot be archived."""
    parser = Page("archive", PURPOSE, "archive runs/induction_heads/hawk/TIME kept/hawk")
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    parser.add_argument("--step", type=int, help="of the checkpoints that were kept; by default the newest")
    given = parser.parse_args(arguments)
    from evalkit.checkpoints.loading import archive

    archive(given.run, given.folder, given.step)
    size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
    print(f"written to {given.folder} ({size / 2**20:.1f} MiB)")
    if given.step is not None:
        print(f"its record and figures are of the whole training; evaluate={given.folder} measures step {given.step:,}")
    return 0
