"""`python -m evalkit.archive RUN FOLDER`: a run small enough to be kept beside its results.

Its record, figures and last parameters: `evaluate=FOLDER`, `evalkit.load(FOLDER)` and `evalkit.compare` read it as they
read the run; going on with it takes the run itself.
"""

import argparse
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.configuration.experiment import Experiment
from evalkit.configuration.saved import from_file
from evalkit.core.errors import UserError, writing
from evalkit.record.files import RESULTS
from evalkit.training.trainer import TrainState

RECORD = ("config.yaml", "metrics.jsonl", RESULTS, "environment.json", "timing.json")
PARAMETERS = "parameters"
STEP = "step"


def archive(run: Path, folder: Path, step: int | None = None) -> None:
    """Writes the record and the parameters of `run`, a file a seed, into `folder`; those at `step`, if it was kept.

    Raises UserError for what is no run, a run that is not finished, and a folder that is in use.
    """
    from evalkit.checkpoints.loading import restore, seeds_of  # which reads archives
    from evalkit.training.trainer import params_of

    with writing(folder):
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; give another folder")
    experiment = from_file(run / "config.yaml")
    if not (run / RESULTS).is_file():
        raise UserError(f"{run} is not finished; go on with it by resume={run} first")
    state, step = restore(experiment, run, step)
    with writing(folder):
        (folder / PARAMETERS).mkdir(parents=True)
        for path in (*(run / name for name in RECORD), *run.glob("*.png"), run / "report.html"):
            if path.is_file():
                shutil.copy(path, folder / path.name)
        for index, seed in enumerate(seeds_of(experiment)):
            leaves = jax.tree_util.tree_leaves_with_path(params_of(state, index))
            arrays: dict[str, Any] = {
                STEP: np.asarray(step),
                **{_name(path): np.asarray(leaf) for path, leaf in leaves},
            }
            np.savez_compressed(folder / PARAMETERS / f"seed-{seed}.npz", **arrays)


def is_archive(folder: Path) -> bool:
    """Whether a folder holds parameters and no checkpoints."""
    return (folder / PARAMETERS).is_dir() and not (folder / "checkpoints").is_dir()


def read(experiment: Experiment, folder: Path, seeds: Sequence[int]) -> tuple[TrainState, int]:
    """The parameters of every seed, without what only training needs, and their step; raises UserError."""
    shapes = jax.eval_shape(experiment.model.init, jax.random.key(0))
    found, step = [], 0
    for seed in seeds:
        path = folder / PARAMETERS / f"seed-{seed}.npz"
        try:
            with np.load(path) as arrays:
                step = int(arrays[STEP])
                params = jax.tree_util.tree_map_with_path(lambda place, _, held=arrays: held[_name(place)], shapes)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} cannot be read ({error}); take the run itself, or archive it again") from error
        if jax.tree.map(np.shape, params) != jax.tree.map(lambda shape: shape.shape, shapes):
            raise UserError(
                f"{path} has parameters of another model than {folder}'s config.yaml; archive the run again"
            )
        found.append(params)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)
    return TrainState(stacked, None, jnp.full((len(found),), step)), step


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m evalkit.archive", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    parser.add_argument("--step", type=int, help="of the checkpoints that were kept; by default the newest")
    given = parser.parse_args(arguments)
    try:
        archive(given.run, given.folder, given.step)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return error.exit_code
    size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
    print(f"written to {given.folder} ({size / 2**20:.1f} MiB)")
    return 0


def _name(path: Sequence[object]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


if __name__ == "__main__":
    sys.exit(main())
