"""`python -m evalkit archive RUN FOLDER`: a run small enough to be kept beside its results.

`evaluate=FOLDER`, `evalkit.load(FOLDER)` and `compare` read it as they read the run; resuming takes the run itself.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Writes the archive and returns 0; raises UserError for what cannot be archived."""
    parser = argparse.ArgumentParser(prog="python -m evalkit archive", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    parser.add_argument("--step", type=int, help="of the checkpoints that were kept; by default the newest")
    given = parser.parse_args(arguments)
    from evalkit.checkpoints.loading import archive

    archive(given.run, given.folder, given.step)
    size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
    print(f"written to {given.folder} ({size / 2**20:.1f} MiB)")
    return 0
