"""Reads NumPy's archives of arrays, whoever wrote them: of what an array says of itself, its shape is believed last."""

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

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


def read(path: Path, shapes: Mapping[str, tuple[int, ...]], words: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of numbers of these names and `shapes` in an `.npz`, and the short text under each of `words`.

    Raises ValueError, before memory is taken for it, for an array that is missing, damaged or of another shape.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name, shape in shapes.items():
                stored, dtype = _header(arrays.zip, name)
                if stored != shape or dtype.kind not in "biuf":
                    raise ValueError(f"{name} is of {dtype} {stored}, and should be of numbers {shape}")
            for name in words:
                stored, dtype = _header(arrays.zip, name)
                if stored != () or dtype.kind != "U" or dtype.itemsize > LONGEST_WORD:
                    raise ValueError(f"{name} is of {dtype} {stored}, and should be a word")
            return {name: arrays[name] for name in (*shapes, *words)}
    except UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from error


def has(path: Path, name: str) -> bool:
    """Whether an `.npz` has something of this name; raises ValueError for a file that cannot be read."""
    try:
        with zipfile.ZipFile(path) as file:
            return f"{name}.npy" in file.namelist()
    except UNREADABLE as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _header(file: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one array, of which only the first bytes are read."""
    with file.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read_rest = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_rest(member)
    return shape, dtype
