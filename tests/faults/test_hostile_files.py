"""Files that nobody would write: each reader answers with a value or with one line, in little memory and time."""

import gzip
import json
import logging
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from evalkit.checkpoints import archives
from evalkit.configuration.spec import Spec
from evalkit.core.errors import LONGEST, UserError
from evalkit.core.rows import read
from evalkit.disk import sums
from evalkit.models.formats import released
from evalkit.models.formats.safetensors import SafeTensors
from evalkit.tasks.text.documents import read as read_texts
from evalkit.tasks.text.tokenizers import TokenizerJson
from support import hostile, tiny
from support.hostile import READERS
from support.shrunk import sampled

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("blank_figures")]
TESTS = Path(__file__).parents[1]
# What a file costs its reader: the default suite affords so many milliseconds of each.
FEW = {"safetensors": 40, "released": 25, "orbax": 8, "rows": 10, "packed_rows": 10, "configuration": 6}
MANY = {"orbax": 400, "configuration": 600, "rows": 1000, "packed_rows": 1000, "released": 1000}
NEEDED = {"tokenizer_json": "tokenizers", "tokenizer_model": "sentencepiece"}


# TensorStore reads on in an event loop that ended when another part of the checkpoint could not be read.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_is_one_line(name: str) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    hostile.attempt(name, FEW.get(name, 30))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", READERS)
def test_thousands_of_damaged_files_take_neither_memory_nor_time(name: str) -> None:
    """In a process that may have 2 GiB more than it begins with, and 20 s a file."""
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    command = [sys.executable, "-m", "support.hostile", name, str(MANY.get(name, 3000))]
    ended = subprocess.run(command, cwd=TESTS, env=tiny.environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def one_line(refused: Callable[[], object], *said: str) -> None:
    with pytest.raises((UserError, ValueError)) as error:
        refused()
    line = str(UserError(error.value))
    assert "\n" not in line and len(line) <= LONGEST + 3 and all(word in line for word in said), line


DEEP = "[" * 100_000


def test_json_that_is_nested_too_deep_is_one_line(tmp_path: Path) -> None:
    for name in ("config.json", "metrics.jsonl", "history.json", "config.yaml", "a.jsonl", "model.safetensors"):
        text = DEEP.encode()
        header = struct.pack("<Q", len(text)) if name == "model.safetensors" else b""
        (tmp_path / name).write_bytes(header + text + b"\n")
    one_line(lambda: released.find(tmp_path, "float32"), "config.json is not JSON")
    one_line(lambda: read(tmp_path), "metrics.jsonl:1 is not JSON")
    one_line(lambda: Spec.saved(tmp_path).experiment, "config.yaml cannot be read")
    one_line(lambda: list(read_texts(str(tmp_path))), "a.jsonl, line 1, is not JSON")
    one_line(lambda: SafeTensors(tmp_path), "the header of model.safetensors is not JSON")


def test_yaml_that_grows_is_refused_before_it_does(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "config.yaml").write_text("\n".join(lines), encoding="utf-8")
    one_line(lambda: Spec.saved(tmp_path).experiment, "it has an alias")


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir [made]", "!!python/name:os.system ''"])
def test_yaml_makes_no_object(tag: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"task: {tag}\n", encoding="utf-8")
    one_line(lambda: Spec.saved(tmp_path).experiment, "config.yaml cannot be read")


@pytest.mark.parametrize(
    "tensor",
    [
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        None,
    ],
)
def test_a_tensor_that_cannot_be_is_one_line(tensor: object, tmp_path: Path) -> None:
    header = json.dumps({"a": tensor}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    one_line(lambda: SafeTensors(tmp_path), "damaged at the tensor a")


def test_a_header_of_a_gibibyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2**30))
        file.truncate(2**31)  # of which the disk holds nothing
    one_line(lambda: SafeTensors(tmp_path), "has a header of")


@pytest.mark.parametrize("name", ["../a/model.safetensors", "/etc/passwd", "..", "sub/model.safetensors", 7])
def test_an_index_leads_nowhere_else(name: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
    one_line(lambda: SafeTensors(tmp_path), "index.json")


def test_a_model_of_a_billion_layers_is_not_laid_out(tmp_path: Path) -> None:
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma", key: 10**9}), encoding="utf-8")
        one_line(lambda: released.find(tmp_path, "float32"), f"config.json has {key}=1000000000")
    # Layers are built one by one, so that a few thousand keep the reader for half a minute.
    (tmp_path / "config.json").write_text('{"model_type": "gemma", "num_hidden_layers": 4096}', encoding="utf-8")
    one_line(lambda: released.find(tmp_path, "float32"), "config.json has num_hidden_layers=4096")


@pytest.mark.parametrize("line", ["NaN", "Infinity", "1e999", "true", '"1"', "[1]", str(2**63)])
def test_a_number_that_no_run_writes_is_one_line(line: str, tmp_path: Path) -> None:
    row = {name: None for name in ("run", "task", "model", "seed", "step", "split", "length", "position")}
    text = json.dumps({**row, "metric": "loss", "total": "HERE", "count": 1, "extra": None}).replace('"HERE"', line)
    (tmp_path / "metrics.jsonl").write_text(f"{text}\n", encoding="utf-8")
    one_line(lambda: read(tmp_path), "metrics.jsonl:1")


def test_a_record_that_unpacks_to_gibibytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.core.rows.LARGEST_RECORD", 2**20)
    (tmp_path / "metrics.jsonl.gz").write_bytes(gzip.compress(bytes(2**24)))
    one_line(lambda: read(tmp_path), "unpacks to more than 1,048,576 bytes")


def test_a_tokenizer_whose_beginning_is_not_in_it_is_one_line(tmp_path: Path) -> None:
    """Its library's Rust panics over that, which is no Exception."""
    fast = pytest.importorskip("tokenizers")
    known = fast.Tokenizer(fast.models.WordLevel({"a": 0, "<bos>": 1}, unk_token="a"))
    template = fast.processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    known.post_processor = template
    content = json.loads(known.to_str())
    content["post_processor"]["special_tokens"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    one_line(lambda: TokenizerJson(tmp_path / "tokenizer.json"), "tokenizer.json cannot be read")


ENCODINGS = ("utf-16", "utf-32", "latin-1", "cp1252", "shift_jis", "utf-16-le")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text_in_another_encoding_is_one_line(encoding: str, tmp_path: Path) -> None:
    words = "ソース" if encoding == "shift_jis" else "Grüße"
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(json.dumps({"text": words}, ensure_ascii=False).encode(encoding))
        one_line(lambda name=name: list(read_texts(str(tmp_path / name))), name)


def test_half_a_character_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud800"}\n', encoding="utf-8")
    one_line(lambda: list(read_texts(str(tmp_path))), "half a character")


def test_a_line_is_one_whatever_is_put_into_it() -> None:
    said = str(UserError("a\nb\x1b[31m\x00\u202e\ud800 " + "x" * 10_000))
    assert said.isprintable() and len(said) <= LONGEST + 3
    assert str(UserError("– “ü” 世界 × 2")) == "– “ü” 世界 × 2"


@pytest.fixture
def kept(tiny_run: Path, tmp_path: Path) -> Path:
    from evalkit.checkpoints.loading import archive

    archive(tiny_run, tmp_path / "kept")
    return tmp_path / "kept"


def rewritten(path: Path, name: str, content: bytes) -> None:
    """A zip file with another content of one member, packed."""
    with zipfile.ZipFile(path) as old:
        members = {member: old.read(member) for member in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member, held in members.items():
            new.writestr(member, content if member == name else held)


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(["zeros", "shape", "objects", "step", "noise", "text"], 2))
def test_an_archive_that_is_not_what_it_says_is_one_line(case: str, kept: Path) -> None:
    (path,) = (kept / archives.PARAMETERS).glob("*.npz")
    with np.load(path) as arrays:
        name = max((name for name in arrays if name != "step"), key=lambda name: arrays[name].size)
    head = b"\x93NUMPY\x01\x00"

    def npy(facts: str, data: bytes = b"") -> bytes:
        text = facts.ljust(117).encode() + b"\n"
        return head + struct.pack("<H", len(text)) + text + data

    content = {
        "zeros": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1048576, 64)}", bytes(2**28)),
        "shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 64)}"),
        "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", b"x"),
        "noise": b"\x00" * 99,
        "text": npy("{'descr': '<U9', 'fortran_order': False, 'shape': (3,)}", bytes(108)),
        "step": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", bytes(12)),
    }[case]
    rewritten(path, f"{'step' if case == 'step' else name}.npy", content)
    sums.write(kept)  # whoever makes a file can make its sums
    experiment = Spec.saved(kept).experiment
    one_line(lambda: archives.read(experiment, kept), "seed-0.npz")


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../dev/zero", "zero"])
def test_sums_are_of_the_files_in_their_folder(name: str, tmp_path: Path) -> None:
    """Of /dev/zero there is no sum, ever."""
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / sums.FILE).write_text(f"# 1 files\n{'0' * 64}  {name}\n", encoding="utf-8")
    one_line(lambda: sums.check(tmp_path), "which is not in the folder")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_bit_of_an_archive_may_turn(kept: Path) -> None:
    (path,) = (kept / archives.PARAMETERS).glob("*.npz")
    experiment, content = Spec.saved(kept).experiment, path.read_bytes()
    draw = np.random.default_rng(0)
    for _ in range(1000):
        damaged = bytearray(content)
        for place in draw.integers(0, len(content), draw.integers(1, 9)):
            damaged[place] ^= 1 << int(draw.integers(8))
        path.write_bytes(bytes(damaged[: draw.integers(1, len(content) + 1)] if draw.random() < 0.2 else damaged))
        sums.write(kept)
        try:
            archives.read(experiment, kept)
        except UserError as error:
            assert "\n" not in str(error)


def test_a_good_file_is_read() -> None:
    assert yaml.safe_load((READERS["configuration"].folder() / "config.yaml").read_text())["seeds"] == 2
