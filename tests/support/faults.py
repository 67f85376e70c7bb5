"""Faults to inject, and what a user is told of them.

Tests of faults lie in `tests/faults/`, a file an area, each marked `fault`. One that is too expensive for the default
suite is marked `slow` and `exhaustive` too: `-m fault` runs it, and the default suite a smaller case of it.
"""

import gc
import random
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

KEPT_FROM = "jax_persistent_cache_min_compile_time_secs"
ALL_COUNTS = (pytest.mark.slow, pytest.mark.exhaustive)


def counts(few: Any, many: Any) -> Sequence[Any]:
    """A test's parameter: `few` by default, and `many` with all counts of the campaign."""
    return [few, pytest.param(many, marks=ALL_COUNTS)]


def one_line(text: str) -> str:
    """The message of a failed run, which must be one line and no traceback."""
    assert text.startswith("evalkit: ") and text.count("\n") == 1, text
    return text


@contextmanager
def full_beyond(size: int) -> Iterator[None]:
    """No file of this process can be larger than `size` bytes, as if the disk were full; no program is kept."""
    with no_programs_kept(), files_up_to(size):
        yield


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process can be larger than `size` bytes."""
    before, without_code = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    # Python would cut off the byte code of what is imported meanwhile, and every later process would stumble over it.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = without_code


@contextmanager
def no_programs_kept() -> Iterator[None]:
    """Within, JAX caches no compiled programs: no run needs them, and JAX would warn of those it cannot write."""
    kept = getattr(jax.config, KEPT_FROM)
    jax.config.update(KEPT_FROM, float("inf"))
    try:
        yield
    finally:
        jax.config.update(KEPT_FROM, kept)
        gc.collect()  # TensorStore's writes that never began, whose warnings would reach a later test


class Rot:
    """Damages the files of a folder, one at a time and all in turn: a flipped bit, a lost end, a lost file."""

    def __init__(self, folder: Path, seed: int = 0):
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        self._random = random.Random(seed)
        self._trial = 0

    @contextmanager
    def one(self) -> Iterator[str]:
        """Within, one file is damaged; yields a text that names the file and the damage."""
        path = self.files[self._trial % len(self.files)]
        kind = ("bit", "end", "file")[self._trial // len(self.files) % 3]
        self._trial += 1
        content = path.read_bytes()
        if kind == "file" or not content:
            path.unlink()
        elif kind == "end":
            path.write_bytes(content[: self._random.randrange(len(content))])
        else:
            bit = self._random.randrange(8 * len(content))
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
        try:
            yield f"{path.name}: {kind}"
        finally:
            path.write_bytes(content)
