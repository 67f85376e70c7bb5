"""Reads and writes the safetensors format, tensor by tensor: a header of names, dtypes, shapes and offsets, then bytes.

The library `safetensors` is not used: with NumPy it has failed on bfloat16, and it maps whole files into memory.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

DTYPES = {"F32": np.dtype("float32"), "F16": np.dtype("float16"), "BF16": np.dtype(jnp.bfloat16)}
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
AGAIN = "download it again"


class Entry(NamedTuple):
    """A tensor in a file, `offset` bytes from its start."""

    file: Path
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


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
        return np.fromfile(file, dtype, count=int(np.prod(shape)), offset=offset).reshape(shape)


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
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        files = [folder / name for name in sorted(set(index["weight_map"].values()))]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{INDEX} is damaged; {AGAIN}") from error
    for file in files:
        if not file.is_file():
            raise ValueError(f"has no {file.name}, which {INDEX} speaks of; {AGAIN}")
    return files


def _header(file: Path) -> dict[str, Entry]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        if size < 8 or start > size:
            raise ValueError(f"{file.name} is truncated: {size} bytes, with a header of {start}; {AGAIN}")
        text = opened.read(start - 8)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file.name} is no safetensors file: its header is not JSON; {AGAIN}") from error
    found = {name: _entry(file, start, name, facts) for name, facts in header.items() if name != "__metadata__"}
    end = max((entry.offset + entry.dtype.itemsize * int(np.prod(entry.shape)) for entry in found.values()), default=0)
    if end > size:
        raise ValueError(f"{file.name} is truncated: {size} bytes of {end}; {AGAIN}")
    return found


def _entry(file: Path, start: int, name: str, facts: Mapping[str, Any]) -> Entry:
    if facts["dtype"] not in DTYPES:
        raise ValueError(f"{name} in {file.name} is of dtype {facts['dtype']}; allowed: {', '.join(DTYPES)}")
    return Entry(file, start + facts["data_offsets"][0], DTYPES[facts["dtype"]], tuple(facts["shape"]))
