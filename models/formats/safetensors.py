"""Reads and writes the safetensors format, tensor by tensor: a header of names, dtypes, shapes and offsets, then bytes.

The library `safetensors` is not used: with NumPy it has failed on bfloat16, and it maps whole files into memory.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from evalkit.models.formats import described
from evalkit.models.formats.described import AGAIN

DTYPES = {"F32": np.dtype("float32"), "F16": np.dtype("float16"), "BF16": np.dtype(jnp.bfloat16)}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LONGEST_HEADER = 100_000_000  # the format's own limit


class Entry(NamedTuple):
    """A tensor in a file, `offset` bytes from its start."""

    file: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The offset of the first byte after the tensor."""
        return self.offset + self.dtype.itemsize * math.prod(self.shape)


class SafeTensors:
    """The tensors of a folder, in one file or in several with an index; each is read when it is asked for.

    Raises ValueError for a folder without them, and for a file that is truncated or not of this format.
    """

    def __init__(self, folder: Path):
        self._entries = {name: entry for file in _files(folder) for name, entry in _header(file).items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns every tensor's shape by its name."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor, in the file's dtype."""
        file, offset, dtype, shape = self._entries[name]
        # Not memory-mapped: the pages of the file would count as memory of the process, beside the parameters.
        return np.fromfile(file, dtype, count=math.prod(shape), offset=offset).reshape(shape)


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[Callable[[], np.ndarray]]) -> None:
    """Writes float32 tensors of these `shapes`, one at a time, in order. Raises OSError if the disk is full."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # without it transformers refuses the file
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            np.ascontiguousarray(tensor(), np.float32).tofile(file)


def _files(folder: Path) -> list[Path]:
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise ValueError(f"has neither {SINGLE} nor {INDEX}; {AGAIN}, weights in safetensors included")
        return [folder / SINGLE]
    parts = described.read(folder / INDEX).get("weight_map")
    names = list(parts.values()) if isinstance(parts, dict) else []
    # A name with a slash would lead out of the folder.
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ValueError(f"{INDEX} is damaged; {AGAIN}")
    files = [folder / name for name in sorted(set(names))]
    for file in files:
        if not file.is_file():
            raise ValueError(f"has no {described.shown(file.name)}, which {INDEX} speaks of; {AGAIN}")
    return files


def _header(file: Path) -> dict[str, Entry]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        if size < 8 or start > size:
            raise ValueError(f"{file.name} is truncated: {size} bytes, with a header of {start}; {AGAIN}")
        if start > LONGEST_HEADER:
            raise ValueError(f"{file.name} has a header of {start} bytes; allowed: {LONGEST_HEADER}; {AGAIN}")
        text = opened.read(start - 8)
    header = described.mapping(text, f"the header of {file.name}")
    entries = {name: _entry(file, start, name, facts) for name, facts in header.items() if name != "__metadata__"}
    end = max((entry.end for entry in entries.values()), default=0)
    if end > size:
        raise ValueError(f"{file.name} is truncated: {size} bytes of {end}; {AGAIN}")
    return entries


def _entry(file: Path, start: int, name: str, facts: Any) -> Entry:
    """A tensor's place; raises ValueError for a dtype that is not served, and for offsets that contradict its shape."""
    if isinstance(facts, Mapping) and isinstance(facts.get("dtype"), str) and facts["dtype"] not in DTYPES:
        dtype = described.shown(facts["dtype"])
        raise ValueError(f"{described.shown(name)} in {file.name} is of dtype {dtype}; allowed: {', '.join(DTYPES)}")
    match facts:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [first, last]}:
            numbers = [*shape, first, last]
            if all(map(described.whole, numbers)) and last - first == DTYPES[dtype].itemsize * math.prod(shape):
                return Entry(file, start + first, DTYPES[dtype], tuple(shape))
    raise ValueError(f"{file.name} is damaged at the tensor {described.shown(name)}; {AGAIN}")
