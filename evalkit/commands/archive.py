"""`python -m evalkit archive RUN FOLDER`: a run small enough to be kept; `--into STUDY` packs runs into a study."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.commands.guide import Page
from evalkit.core.errors import UserError, typed_path

PURPOSE = """\
Keep the record and the last parameters of a finished run: small enough to lie beside its results.
With --step its parameters are those of that step; its record stays that of the whole training.
evaluate=FOLDER, evalkit.load(FOLDER) and compare read it as they read the run; resuming takes the run itself.

With --into, the records of finished runs are added to a study, without parameters: STUDY, or a folder in it.
rows, compare and select read them there as folders, such as studies/synthetic/fig6b/hawk."""


def main(arguments: Sequence[str]) -> int:
    """Writes the archive and returns 0; raises UserError for what cannot be archived."""
    examples = ("archive runs/induction_heads/hawk/TIME kept/hawk", "archive runs/fig6b/cpu --into studies/mine/fig6b")
    parser = Page("archive", PURPOSE, *examples, usage="RUN FOLDER [--step STEP] | RUN [RUN …] --into STUDY")
    parser.add_argument("runs", nargs="+", type=typed_path, metavar="RUN", help="a run's folder; with --into several")
    parser.add_argument("--step", type=int, help="of the checkpoints that were kept; by default the newest")
    parser.add_argument("--into", type=typed_path, metavar="STUDY", help="the study; made if it is not there")
    parsed = parser.parse_args(arguments)
    if parsed.into is not None:
        if parsed.step is not None:
            raise UserError(f"--step={parsed.step} chooses parameters, which a study has not; leave it out")
        return _into(parsed.runs, parsed.into)
    if len(parsed.runs) != 2:
        raise UserError("archive takes a run and the folder to write: archive RUN FOLDER, or archive RUN --into STUDY")
    run, folder = parsed.runs
    from evalkit.checkpoints.loading import archive

    archive(run, folder, parsed.step)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"written to {folder} ({size / 2**20:.1f} MiB)")
    if parsed.step is not None:
        print(f"its record and figures are of the whole training; evaluate={folder} measures step {parsed.step:,}")
    return 0


def _into(runs: Sequence[Path], place: Path) -> int:
    """Packs the runs in and below these folders into the study of `place`, which is new where there is none."""
    from evalkit.core.studies import study_of
    from evalkit.record import packing
    from evalkit.reports.pooling import find_runs

    study = study_of(place) or place
    folders = {}
    for parent in runs:
        for folder in find_runs([parent]):
            own = folder.resolve().name if folder == parent else folder.relative_to(parent)
            name = place.relative_to(study) / own
            if folders.setdefault(name.as_posix(), folder) != folder:
                raise UserError(
                    f"{folder} and {folders[name.as_posix()]} are both {place / name.name}; give a folder above both"
                )
    added = packing.add(study, folders)
    print(f"{len(added)} runs are new in {study}; {len(folders) - len(added)} were there already")
    return 0
