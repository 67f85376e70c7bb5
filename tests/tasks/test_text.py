"""Text tasks: where the text comes from, what is trained on, validated on and held out, and what is refused."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalkit.configuration import composition
from evalkit.configuration import experiment as config
from evalkit.configuration.schema import annotations
from evalkit.tasks.text import standard_library
from evalkit.tasks.text.hub_documents import HELD_OUT, Hub
from evalkit.tasks.text.text import Text
from evalkit.tasks.text.tokenizers import Bytes

# Documents of one letter each, so that a token says which it is from.
TRAIN, HELD = ("a", "b"), ("x", "y")
SIZE = 2000


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("EVALKIT_CACHE", str(cache))
    return cache


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"asked for {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for prefix, letters in (("train", TRAIN), ("heldout", HELD)):
        for letter in letters:
            (tmp_path / f"{prefix}-{letter}.txt").write_text(letter * SIZE)
    (tmp_path / "README").write_text("no text")
    return tmp_path


def letters(tokens: np.ndarray) -> set[str]:
    return set(Bytes().decode(tokens.ravel().tolist()))


def refusal(text: Text) -> str:
    with pytest.raises(ValueError) as refused:
        text.prepare()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def held_out(text: Text) -> list[str]:
    return [text.describe(span.tokens) for span in text.documents()]


def test_prefixes_say_what_is_held_out(folder: Path) -> None:
    text = Text(length=50, path=str(folder))
    text.prepare()
    assert text.vocab_size == 258 and text.remote is None
    window = text.windows(0, 0, 200, 50)
    assert window.tokens.shape == window.targets.shape == window.mask.shape == window.positions.shape == (200, 50)
    assert letters(window.tokens) == set(TRAIN)
    assert held_out(text) == [letter * SIZE for letter in HELD]
    assert [(span.size, Path(span.source).name) for span in text.documents()] == [
        (SIZE, f"heldout-{letter}.txt") for letter in HELD
    ]
    assert text.used() == f"text: 2 documents, 4,000 bytes, from {folder}; held out: 2 documents, 4,000 bytes"


def test_folders_may_have_the_names(tmp_path: Path) -> None:
    for name, letter in (("train", "a"), ("held_out", "x")):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "one.md").write_text(letter * SIZE)
    text = Text(length=20, path=str(tmp_path))
    text.prepare()
    assert held_out(text) == ["x" * SIZE] and letters(text.windows(0, 0, 9, 20).tokens) == {"a"}


def test_two_places_are_the_same_as_one_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    one = Text(length=20, path="~")
    two = Text(length=20, train="~/train-*.txt", held_out="~/heldout-*.txt")
    for mine, its in zip(one.windows(1, 2, 8, 20), two.windows(1, 2, 8, 20), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert one.digest() == two.digest()
    assert two.used().endswith("held out: 2 documents, 4,000 bytes, from ~/heldout-*.txt")


def test_validation_is_what_training_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a" * 900 + "v" * 100)
    (tmp_path / "held.txt").write_text("x")
    text = Text(length=50, path=str(tmp_path), validation=0.1)
    text.prepare()
    assert letters(text.windows(0, 0, 300, 50).targets) == {"a"}
    assert letters(text.validation_windows(0, 300, 50).tokens) == {"v"}
    assert text.bytes_per_token() == 1


def test_windows_are_numbers_alone(folder: Path) -> None:
    """The same in another object, whatever was asked before; validation windows whatever the batch."""
    one, other = Text(length=20, path=str(folder)), Text(length=20, path=str(folder))
    one.windows(0, 0, 4, 20)
    np.testing.assert_array_equal(one.windows(5, 9, 4, 20).tokens, other.windows(5, 9, 4, 20).tokens)
    whole, parts = one.validation_windows(0, 6, 20), [other.validation_windows(i, 2, 20) for i in (0, 2, 4)]
    for field in range(4):
        np.testing.assert_array_equal(whole[field], np.concatenate([part[field] for part in parts]))


def test_it_is_a_static_argument(folder: Path) -> None:
    one, two = Text(length=20, path=str(folder)), Text(length=20, path=str(folder))
    one.prepare()
    assert one == two and hash(one) == hash(two) and one != replace(one, length=64)


def test_the_digest_is_of_everything_that_is_read(folder: Path) -> None:
    def digest(**settings: Any) -> str:
        return Text(path=str(folder), **settings).digest()

    first = digest()
    assert first == digest(length=7) and first != digest(validation=0.1)
    (folder / "heldout-x.txt").write_text("other")
    assert digest() != first
    second = digest()
    (folder / "train-c.txt").write_text("another")
    assert digest() != second


def test_nothing_is_read_before_it_is_needed(tmp_path: Path) -> None:
    text = Text(path=str(tmp_path / "gone"))
    assert text.vocab_size == 258 and text.length == 512
    assert "is no folder; give one that is there, with files train-*.txt and heldout-*.txt" in refusal(text)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no text whose name begins with train"),
        ({"train.png": b"", "held.txt": b"x"}, "has no text whose name begins with train"),
        ({"train.txt": b"a" * 9999}, "has no text whose name begins with held"),
        ({"train.txt": b"caf\xe9", "held.txt": b"x"}, "train.txt, line 1, is not UTF-8 at byte 3; convert it"),
        ({"train.txt": b"a" * 9999, "held.txt": b""}, "there is no text in these documents"),
        ({"train.txt": b"a" * 30, "held.txt": b"x"}, "length=64, but the training texts have 30 tokens"),
        ({"train.txt": b"a" * 999, "held.txt": b"x"}, "validation=0.01562 leaves 15 tokens, too few for a window of"),
        ({"train.txt": b"a" * 9999, "held.txt": b"a" * 9999}, "take one away, or give task.allow_shared=true"),
        ({"train.jsonl": b'{"body": "a"}', "held.txt": b"x"}, "has no text in 'text'; it has body"),
    ],
)
def test_wrong_texts_are_one_line(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert words in refusal(Text(length=64, path=str(tmp_path)))


def test_a_folder_without_permission_is_one_line(shut: Path) -> None:
    (shut / "shut").mkdir(mode=0o000)
    assert "cannot be read (Permission denied); let it be read" in refusal(Text(path=str(shut / "shut")))


def test_the_validation_that_a_refusal_names_is_enough(folder: Path) -> None:
    said = refusal(Text(length=512, path=str(folder)))
    enough = float(said.rpartition("=")[2])
    Text(length=512, path=str(folder), validation=enough).prepare()


def test_a_shared_document_may_be_allowed(folder: Path) -> None:
    (folder / "train-x.txt").write_text("x" * SIZE)
    assert "heldout-x.txt is held out and in the training texts too, as" in refusal(Text(length=9, path=str(folder)))
    Text(length=9, path=str(folder), allow_shared=True).prepare()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"length": 0}, "length=0; allowed: 1 or more"),
        ({"validation": 0.0}, "validation=0.0; allowed: above 0 and below 1"),
        ({"validation": 1.0}, "validation=1.0; allowed: above 0 and below 1"),
        ({"path": "a", "train": "b", "held_out": "c"}, "path=a with train=b with held_out=c; allowed: path, or train"),
        ({"path": "a", "train": "b"}, "path=a with train=b; allowed"),
        ({"path": "a", "hub": Hub(name="o/n")}, "path=a with hub.name=o/n; allowed: path, or train with held_out, or"),
        ({"train": "b", "held_out": "c", "hub": Hub(name="o/n")}, "with hub.name=o/n; allowed"),
        ({"train": "b"}, "train=b without held_out; give both"),
        ({"held_out": "c"}, "held_out=c without train; give both"),
    ],
)
def test_settings_that_contradict_are_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        Text(**settings)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_tokenizer_of_ones_own(folder: Path, own_cache: Path) -> None:
    made = pytest.importorskip("tokenizers")
    fast = made.Tokenizer(made.models.WordLevel({"?": 0, "a": 1, "x": 2}, unk_token="?"))
    fast.pre_tokenizer = made.pre_tokenizers.Split("", "isolated")
    fast.save(str(folder / "own.json"))
    text = Text(length=20, path=str(folder), tokenizer=str(folder / "own.json"))
    text.prepare()
    assert text.vocab_size == 3 and set(text.windows(0, 0, 50, 20).tokens.ravel()) == {0, 1}
    assert text.digest() != Text(length=20, path=str(folder)).digest()
    assert "gone.json is no file" in refusal(Text(path=str(folder), tokenizer="gone.json"))


def test_tokens_are_kept_where_they_are_wanted(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, given = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("given")
    Text(length=9, path=str(folder), cache=str(given)).prepare()
    assert len(list(given.glob("[!.]*"))) == 2 and not list(own_cache.iterdir())
    Text(length=9, path=str(folder)).prepare()
    assert len(list(own_cache.glob("[!.]*"))) == 2
    monkeypatch.delenv("EVALKIT_CACHE")
    monkeypatch.setenv("HOME", str(home))
    Text(length=9, path=str(folder)).prepare()
    assert len(list((home / ".cache" / "evalkit" / "corpora").glob("[!.]*"))) == 2


def test_an_example_is_for_human_eyes(folder: Path) -> None:
    assert Text(path=str(folder)).describe(np.asarray([97, 10, 98])) == "a⏎b"


def test_without_data_it_is_the_standard_library() -> None:
    text = Text()
    text.prepare()
    assert text.used().startswith("text: the source of Python 3.")
    assert "standard library, no data given; give data.path=FOLDER" in text.used()
    spans = text.documents()
    assert sum(span.size >= 33_000 for span in spans) >= 8
    assert all(standard_library.is_held_out(span.source) for span in spans)
    assert not any("test" in Path(span.source).parent.as_posix() for span in spans)
    assert text.digest() == Text().digest()


def test_without_the_source_of_python_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    (tmp_path / "small.py").write_text("small = True")
    (tmp_path / "latin.py").write_bytes(b"#" * 30_000 + b"\xe9")
    assert "there is no source of Python's standard library in" in refusal(Text())


class Server:
    """What `datasets.load_dataset` answers, and how often it was asked."""

    def __init__(self, splits: dict[str, list[Any]]):
        self.splits, self.asked = splits, 0

    def load(self, name: str, config: str | None, split: str, revision: str | None, streaming: bool) -> list[Any]:
        assert (name, config, revision, streaming) == ("owner/set", "all", "v1", True)
        self.asked += 1
        return self.splits[split]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    datasets = pytest.importorskip("datasets")
    rows = [{"text": hashlib.sha256(bytes([i])).hexdigest() * 9, "id": i} for i in range(2 * HELD_OUT + 1)]
    made = Server({"train": rows[:-1], "test": rows[-1:]})
    monkeypatch.setattr(datasets, "load_dataset", made.load)
    return made


REMOTE = Hub(name="owner/set", config="all", revision="v1")


def test_a_data_set_is_asked_for_once(server: Server) -> None:
    text = Text(length=20, hub=REMOTE)
    assert text.remote == "owner/set" and server.asked == 0
    text.prepare()
    assert text.remote is None and server.asked == 2
    assert text.used().startswith("text: 100 documents") and "from owner/set; held out: 1 document, " in text.used()
    again = Text(length=9, hub=REMOTE)
    again.prepare()
    assert again.remote is None and server.asked == 2 and again.digest() == text.digest()
    assert Text(length=9, hub=replace(REMOTE, revision="v2")).remote == "owner/set"
    assert Text(length=9, hub=REMOTE, field="id").remote == "owner/set"


def test_a_data_set_of_one_split_gives_every_so_many_rows(server: Server) -> None:
    text = Text(length=20, hub=replace(REMOTE, held_out=None))
    text.prepare()
    assert [span.source for span in text.documents()] == ["owner/set/train#0", f"owner/set/train#{HELD_OUT}"]
    assert "text: 98 documents" in text.used()


def test_the_first_documents_of_a_data_set_are_enough(server: Server) -> None:
    text = Text(length=20, hub=replace(REMOTE, documents=10))
    text.prepare()
    assert "text: 10 documents" in text.used()
    both = Text(length=20, hub=replace(REMOTE, documents=10, held_out=None))
    assert "text: 9 documents" in both.used() and len(both.documents()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"held_out": "validation"}, "the data set owner/set cannot be read ('validation'); check its name, config"),
        ({"held_out": "broken"}, "the data set owner/set cannot be read (gone); check"),
        ({"held_out": "numbers"}, "field=text: owner/set has no text there; it has id, text"),
    ],
)
def test_what_a_data_set_refuses_is_one_line(server: Server, settings: dict[str, Any], words: str) -> None:
    class Broken(list[Any]):
        def __iter__(self) -> Any:
            raise ConnectionError("gone\nand a trace")

    server.splits |= {"broken": Broken(), "numbers": [{"text": 3, "id": 1}]}
    assert words in refusal(Text(length=20, hub=replace(REMOTE, **settings)))


@pytest.mark.slow
def test_a_data_set_without_network_is_one_line() -> None:
    """In a process of its own: `datasets` reads the switch when it is imported."""
    pytest.importorskip("datasets")
    code = (
        "from evalkit.tasks.text import Text; from evalkit.tasks.text.hub_documents import Hub; "
        "Text(hub=Hub(name='owner/set')).prepare()"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ValueError: the data set owner/set cannot be read (")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"held_out": "train"}, "held_out=train is trained on"), ({"documents": 0}, "documents=0; allowed: 1 or more")],
)
def test_wrong_settings_of_a_data_set_are_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Hub(name="owner/set", **settings)


def test_a_folder_is_a_data_set_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by `datasets` itself, and keyed by its content."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()

    def write(split: str, *texts: str) -> None:
        (tmp_path / "set" / f"{split}.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))

    write("train", "a" * SIZE, "b" * SIZE)
    write("test", "x" * SIZE)
    text = Text(length=20, hub=Hub(name=str(tmp_path / "set")), field="body")
    assert text.remote is None
    text.prepare()
    assert held_out(text) == ["x" * SIZE] and letters(text.windows(0, 0, 90, 20).tokens) == {"a", "b"}
    write("test", "y" * SIZE)
    assert held_out(Text(length=20, hub=Hub(name=str(tmp_path / "set")), field="body")) == ["y" * SIZE]


@pytest.mark.parametrize("name", ["books", "arxiv"])
def test_the_configuration_states_every_setting(name: str) -> None:
    def built(*overrides: str) -> Text:
        return config.build({"task": composition.compose([f"task={name}", *overrides]).config.task}, "task")

    assert built() == Text()
    assert built("data.path=texts") == Text(path="texts")
    given = built("task.hub.name=owner/set", "task.hub.held_out=null", "task.field=article")
    assert given == Text(hub=Hub(name="owner/set", held_out=None), field="article")
    stated = composition.compose([f"task={name}"]).config.task
    assert set(stated) == {"_target_", *annotations(Text)} and set(stated.hub) == {"_target_", *annotations(Hub)}
