"""A run small enough to be kept beside its results: its record, figures and last parameters."""

import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.configuration.experiment import Experiment
from evalkit.core import studies
from evalkit.core.errors import UserError, writing
from evalkit.core.rows import PACKED, pack
from evalkit.disk import sums
from evalkit.numerics import random_key
from evalkit.parallel import peers
from evalkit.record.files import RESULTS
from evalkit.record.history import FILE as HISTORY
from evalkit.training.state import TrainState, params_of

RECORD = ("config.yaml", RESULTS, HISTORY, "environment.json", "timing.json")
PARAMETERS = "parameters"
STEP, EVALUATED = "step", "evaluated"
SUMMED = "summed"
"""An array beside parameters that were written with checksums: if these are missing, the archive is damaged."""
LONGEST_WORD = 256
# What zipfile, zlib and NumPy raise of files that are damaged, packed in ways that they do not know, or encrypted.
UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    TypeError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def write(folder: Path, run: Path, experiment: Experiment, state: TrainState, step: int) -> None:
    """Writes the record of `run` and its evaluated parameters, a file a seed, whole or not at all. Raises UserError."""
    if not peers.first():
        for index in range(experiment.seeds):  # all processes must take part where the state is divided over them
            params_of(state, index, experiment.parameters)
        return
    place = folder.absolute()
    new = place.with_name(f".{place.name}.unfinished")
    with writing(folder):
        refuse_used(folder)
        shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
        try:
            (new / PARAMETERS).mkdir(parents=True)
            for path in (*(run / name for name in RECORD), *run.glob("*.png"), run / "report.html"):
                if path.is_file():
                    shutil.copy(path, new / path.name)
            pack(run, new)
            facts = {STEP: step, EVALUATED: experiment.parameters, SUMMED: True}
            about = {name: np.asarray(fact) for name, fact in facts.items()}
            for index, seed in enumerate(experiment.all_seeds):
                params = params_of(state, index, experiment.parameters)
                leaves = jax.tree_util.tree_leaves_with_path(params)
                kept: dict[str, Any] = {_name(path): np.asarray(leaf) for path, leaf in leaves}
                np.savez_compressed(new / PARAMETERS / f"seed-{seed}.npz", **{**about, **kept})
            sums.write(new)
            new.replace(place)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def refuse_used(folder: Path) -> None:
    """Raises UserError if there is anything in `folder`."""
    with writing(folder):
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; give another folder")


def is_archive(folder: Path) -> bool:
    """Whether a folder holds what is kept of a run, its record and perhaps its parameters, and no checkpoints."""
    kept = (folder / PARAMETERS).is_dir() or (folder / PACKED).is_file() or studies.packed(folder) is not None
    return kept and not (folder / "checkpoints").is_dir()


def refuse_without_parameters(folder: Path) -> None:
    """Raises UserError for an archive that keeps the record of a run alone."""
    if is_archive(folder) and not (folder / PARAMETERS).is_dir():
        raise UserError(f"{folder} keeps a record without parameters; train it again, as its environment.json says")


def read(experiment: Experiment, folder: Path) -> tuple[TrainState, int]:
    """The parameters of every seed, without what only training needs, and their step; raises UserError."""
    refuse_without_parameters(folder)
    try:
        summed = sums.check(folder)
    except sums.Damaged as error:
        raise UserError(f"{folder} is damaged ({error}); take the run itself, or archive it again") from error
    model, training = experiment.trained
    shapes = jax.eval_shape(model.init, random_key(0))
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    of_seeds, step = [], 0
    for seed in experiment.all_seeds:
        path = folder / PARAMETERS / f"seed-{seed}.npz"
        try:
            if not summed and has_array(path, SUMMED):
                raise ValueError(f"{sums.FILE} is missing")
            words = (EVALUATED,) if training.average is not None else ()
            held = read_arrays(path, {STEP: (), **{_name(place): leaf.shape for place, leaf in leaves}}, words)
            step = int(held[STEP])
        except ValueError as error:
            raise UserError(f"{path} cannot be read ({error}); take the run itself, or archive it again") from error
        evaluated = str(held.get(EVALUATED, experiment.parameters))
        if evaluated != experiment.parameters:
            raise UserError(
                f"{path} has the {evaluated} parameters alone; give the run itself, or leave parameters= out"
            )
        of_seeds.append(jax.tree_util.tree_map_with_path(lambda place, _, held=held: held[_name(place)], shapes))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *of_seeds)
    return TrainState(stacked, None, jnp.full((len(of_seeds),), step)), step


def _name(path: Sequence[object]) -> str:
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def read_arrays(path: Path, shapes: Mapping[str, tuple[int, ...]], words: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of numbers of these names and `shapes` in an `.npz`, and the short text under each of `words`.

    Raises ValueError, before memory is taken for it, for an array that is missing, damaged or of another shape.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name, shape in shapes.items():
                stored, dtype = _array_header(arrays.zip, name)
                if stored != shape or dtype.kind not in "biuf":
                    raise ValueError(f"{name} is of {dtype} {stored}, and should be of numbers {shape}")
            for name in words:
                stored, dtype = _array_header(arrays.zip, name)
                if stored != () or dtype.kind != "U" or dtype.itemsize > LONGEST_WORD:
                    raise ValueError(f"{name} is of {dtype} {stored}, and should be a word")
            return {name: arrays[name] for name in (*shapes, *words)}
    except UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from error


def has_array(path: Path, name: str) -> bool:
    """Whether an `.npz` has something of this name; raises ValueError for a file that cannot be read."""
    try:
        with zipfile.ZipFile(path) as file:
            return f"{name}.npy" in file.namelist()
    except UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _array_header(file: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one array, of which only the first bytes are read."""
    with file.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read_rest = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_rest(member)
    return shape, dtype
