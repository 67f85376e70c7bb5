"""Damaged files, and the readers that must answer them with a value or with one line, in little memory.

`cd tests; python -m support.hostile NAME COUNT` gives the reader `NAME` so many damaged files, in a process with
limited memory and limited CPU time for each file.
"""

import atexit
import contextlib
import gzip
import json
import logging
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalkit.configuration.spec import Spec
from evalkit.core.errors import LONGEST, UserError

MORE_MEMORY = 2 * 2**30
SECONDS = 20

SMALL = st.integers(-3, 300) | st.sampled_from([2**31, -(2**31), 2**53, 2**63, 2**64, 10**30])
FLOATS = st.floats() | st.sampled_from([1e308, -0.0, 5e-324])
STRANGE = ["", "../up", "/etc", "${seed}", "a\nb", "\x00", "\ud800", "nan", "$\\frac", "\u202e"]
WORDS = st.text(max_size=8) | st.sampled_from(STRANGE)
LEAVES = st.none() | st.booleans() | SMALL | FLOATS | WORDS
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


@st.composite
def another(draw: st.DrawFn, value: Any) -> Any:
    """`value`, plain data, with one part replaced, removed, or joined by another."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(list(value)))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            return {key: kept for key, kept in value.items() if key != name}
        if kind == 1:
            return {**value, draw(WORDS): draw(JSON)}
        return {**value, name: draw(another(value[name]))}
    if isinstance(value, list) and value and draw(st.integers(0, 5)):
        index = draw(st.integers(0, len(value) - 1))
        return [*value[:index], draw(another(value[index])), *value[index + draw(st.integers(0, 2)) :]]
    return draw(JSON)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` with one to three bits turned, parts lost, doubled, or replaced by noise."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 40)))
        kind = draw(st.integers(0, 4))
        if kind == 0 and start < len(content):
            content = content[:start] + bytes([content[start] ^ (1 << draw(st.integers(0, 7)))]) + content[start + 1 :]
        elif kind == 1:
            content = content[:start] + content[end:]
        elif kind == 2:
            content = content[:end] + content[start:]
        elif kind == 3:
            content = content[:start]
        else:
            content = content[:start] + draw(st.binary(max_size=12)) + content[end:]
    return content


def dumped(value: Any) -> bytes:
    """A value as JSON, even with what JSON does not allow: NaN, and half a character."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class Reader:
    """What reads a file in a folder. `files` are damaged copies of a good one, which `folder` makes once."""

    file: str
    folder: Callable[[], Path]
    files: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[Path], Any]


def answered(read: Callable[[Path], Any], folder: Path) -> str | None:
    """The one-line error of a reader, None if it reads the file; any other error is raised."""
    try:
        read(folder)
    except (UserError, ValueError) as error:
        if type(error) not in (UserError, ValueError):
            raise AssertionError(f"{type(error).__name__} is no sentence of ours: {error}") from error
        line = str(UserError(error))  # as the door shows it
        assert line and "\n" not in line and len(line) <= LONGEST + 3, line
        return line
    return None


def json_of(content: bytes) -> st.SearchStrategy[bytes]:
    """Damaged bytes, or other JSON."""
    return damaged(content) | another(json.loads(content)).map(dumped)


def lines_of(content: bytes) -> st.SearchStrategy[bytes]:
    """Damaged bytes, or one line with other JSON."""
    lines = content.splitlines()

    def with_line(found: tuple[int, Any]) -> bytes:
        return b"".join(line + b"\n" for line in [*lines[: found[0]], dumped(found[1]), *lines[found[0] + 1 :]])

    @st.composite
    def changed(draw: st.DrawFn) -> bytes:
        index = draw(st.integers(0, min(len(lines) - 1, 12)))
        return with_line((index, draw(another(json.loads(lines[index])))))

    return damaged(content) | changed()


def yaml_of(content: bytes) -> st.SearchStrategy[bytes]:
    """Damaged bytes, or other YAML."""

    def text(value: Any) -> bytes:
        return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")

    return damaged(content) | another(yaml.safe_load(content)).map(text)


def packed_of(content: bytes) -> st.SearchStrategy[bytes]:
    """Damaged bytes, or other lines packed."""
    return damaged(content) | lines_of(gzip.decompress(content)).map(lambda lines: gzip.compress(lines, mtime=0))


def _place() -> Path:
    """A new folder, until this process ends."""
    folder = tempfile.mkdtemp(prefix="hostile-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _run() -> Path:
    """A run that nobody trained, with its rows, its configuration and its history."""
    from evalkit.configuration.saved import save
    from evalkit.core.rows import pack
    from support import made_up_runs, tiny

    folder = _place() / "run"
    record = made_up_runs.run_record(seeds=(0, 1), not_run=(2048,), cache_bytes={"256": 10}, flops_per_token=7)
    made_up_runs.write_run(folder, record)
    save(tiny.experiment("seeds=2").config, folder / "config.yaml")
    work = [
        {"command": "evalkit x", "step": 0, "steps": 100, "schedule": "cosine"},
        {"command": "y", "step": 50, "steps": 150},
    ]
    (folder / "history.json").write_text(json.dumps(work), encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"command": "evalkit x", "cores": 2}), encoding="utf-8")
    packed = folder.parent / "packed"
    packed.mkdir()
    pack(folder, packed)
    return folder


def _packed() -> Path:
    return _run().parent / "packed"


@cache
def _released() -> Path:
    from evalkit.checkpoints import tokenizer_files
    from support.released_models import folder_of_griffin

    folder = _place() / "released"
    folder_of_griffin(folder)
    tokenizer_files.write_bytes(folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {"a": "model.safetensors"}}), encoding="utf-8"
    )
    return folder


@cache
def _sentencepiece() -> Path:
    import io

    import sentencepiece

    folder = _place()
    model = io.BytesIO()
    sentences = iter(["the cat sat on the mat", "a cat and a dog", "dogs sit on mats"] * 5)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences, model_writer=model, vocab_size=40, minloglevel=2, hard_vocab_limit=False
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return folder


@cache
def _texts() -> Path:
    import pyarrow
    from pyarrow import parquet

    folder = _place()
    (folder / "a.txt").write_text("Grüße, 世界\r\nand more\n", encoding="utf-8")
    rows = [{"text": "one"}, {"text": "zwei ü"}, {"text": None}]
    (folder / "a.jsonl").write_bytes(b"".join(dumped(row) + b"\n" for row in rows))
    parquet.write_table(pyarrow.table({"text": ["one", "zwei ü", None]}), folder / "a.parquet")
    return folder


@cache
def _orbax() -> Path:
    import orbax.checkpoint as ocp

    folder = _place() / "checkpoint"
    ocp.PyTreeCheckpointer().save(folder, {"a": {"b": np.ones((3, 2), np.float32)}, "c": np.zeros(4, np.float32)})
    return folder


def _read_report(folder: Path) -> None:
    import evalkit

    evalkit.rows(folder)
    evalkit.compare(folder, folder=folder.parent / "out", quiet=True)


def _read_history(folder: Path) -> None:
    from evalkit.record import history
    from evalkit.reports.writer import _how_it_was_made

    history.record_of(folder)
    _how_it_was_made(folder)


def _read_configuration(folder: Path) -> None:

    _ = Spec.saved(folder).experiment


def _read_released(folder: Path) -> None:
    from evalkit.models.formats import released

    released.find(folder, "float32").read()


def _read_tensors(folder: Path) -> None:
    from evalkit.models.formats.safetensors import SafeTensors

    found = SafeTensors(folder)
    for name in found.shapes:
        found.read(name)


def _read_orbax(folder: Path) -> None:
    from evalkit.models.formats.orbax import OrbaxTensors

    found = OrbaxTensors(folder)
    for name in found.shapes:
        found.read(name)


def _read_tokenizer(folder: Path) -> None:
    from evalkit.tasks.text.tokenizers import from_file

    (file,) = (path for path in folder.iterdir() if path.name in ("tokenizer.json", "tokenizer.model"))
    found = from_file(str(file))
    found.decode(found.encode("the cat, <bos> ü\x00 世"))


def _read_texts(folder: Path) -> None:
    from evalkit.tasks.text.documents import read

    for document in read(str(folder)):
        document.text.encode()


READERS = {
    "safetensors": Reader("model.safetensors", _released, damaged, _read_tensors),
    "safetensors_index": Reader("model.safetensors.index.json", _released, json_of, _read_tensors),
    "released": Reader("config.json", _released, json_of, _read_released),
    "tokenizer_json": Reader("tokenizer.json", _released, json_of, _read_tokenizer),
    "tokenizer_model": Reader("tokenizer.model", _sentencepiece, damaged, _read_tokenizer),
    "orbax": Reader("_METADATA", _orbax, json_of, _read_orbax),
    "rows": Reader("metrics.jsonl", _run, lines_of, _read_report),
    "packed_rows": Reader("metrics.jsonl.gz", _packed, packed_of, _read_report),
    "history": Reader("history.json", _run, json_of, _read_history),
    "environment": Reader("environment.json", _run, json_of, _read_history),
    "configuration": Reader("config.yaml", _run, yaml_of, _read_configuration),
    "text": Reader("a.txt", _texts, damaged, _read_texts),
    "json_lines": Reader("a.jsonl", _texts, lines_of, _read_texts),
    "parquet": Reader("a.parquet", _texts, damaged, _read_texts),
}


@contextlib.contextmanager
def copies(reader: Reader) -> Iterator[Callable[[bytes], Path]]:
    """A function that gives a folder like the reader's, with another content of its file."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        shutil.copytree(reader.folder(), folder)

        def copy(content: bytes) -> Path:
            (folder / reader.file).write_bytes(content)
            return folder

        yield copy


def attempt(name: str, count: int, answer: Callable[[Callable[[Path], Any], Path], Any] = answered) -> None:
    """Gives a reader `count` damaged files; raises for the first that it does not answer as it should."""
    reader = READERS[name]
    good = (reader.folder() / reader.file).read_bytes()
    with copies(reader) as copy:
        assert answered(reader.read, copy(good)) is None

        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(reader.files(good))
        def every(content: bytes) -> None:
            answer(reader.read, copy(content))

        every()


def attempt_limited(name: str, count: int) -> None:
    """As `attempt`, in little more memory than this process has now, and a few seconds of CPU a file."""
    from support.sharing import blank_figures

    logging.getLogger("absl").setLevel(logging.CRITICAL)
    with blank_figures():
        attempt(name, 3)  # loads all libraries, so that the limit allows for their memory
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MORE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        signal.signal(signal.SIGPROF, _stop)
        attempt(name, count, _in_time)


def _in_time(read: Callable[[Path], Any], folder: Path) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    answered(read, folder)
    signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(number: int, frame: Any) -> None:
    raise TimeoutError(f"a file kept its reader for {SECONDS} s of CPU")


if __name__ == "__main__":
    attempt_limited(sys.argv[1], int(sys.argv[2]))
