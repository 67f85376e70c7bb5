"""One reader of all texts that a user gives: what ends a line, what a mark is, what is hidden; copies are one text."""

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.core.errors import UserError
from evalkit.disk import sums
from evalkit.evaluations.downstream.tasks import loss_by_position
from evalkit.session.prompting import prompts_in
from evalkit.tasks.text import Text
from evalkit.tasks.text.corpus import FACTS, content_of
from evalkit.tasks.text.documents import Document, files_of, hidden_in, read

BOM = b"\xef\xbb\xbf"
STRANGE = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
"""All that str.splitlines takes for the end of a line, but for LF and CR."""
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\ufeff") | st.sampled_from(STRANGE)
LINES = st.lists(st.text(LETTERS).filter(str.strip), min_size=1, max_size=4)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def readers(file: Path, field: str) -> dict[str, Callable[[], list[str]]]:
    """Everything that reads rows of a user's, as texts."""
    return {
        "corpora": lambda: [document.text for document in read(str(file), field)],
        "lm-eval": lambda: loss_by_position._texts(str(file), field),
        "prompts": lambda: [str(entry["prompt"]) for entry in prompts_in(file)],
    }


@settings(max_examples=40, deadline=None)
@given(LINES, ENDS, st.booleans(), st.booleans(), st.integers(0, 2))
def test_rows_are_read_alike_by_every_reader(
    lines: list[str], end: str, marked: bool, escaped: bool, blank: int
) -> None:
    """Whatever ends a line, whatever else a line holds, with a mark or blank lines around."""
    rows = [json.dumps({"prompt": line, "null": None}, ensure_ascii=escaped) for line in lines]
    distinct = {content_of(Document("", line)).form: line for line in reversed(lines)}
    with TemporaryDirectory() as folder:
        for name, written in (("rows.jsonl", rows), ("lines.txt", lines)):
            Path(folder, name).write_bytes(BOM * marked + end.join([*written, *[" "] * blank, ""]).encode())
        texts = {name: read_all() for name, read_all in readers(Path(folder, "rows.jsonl"), "prompt").items()}
        assert texts["corpora"] == texts["prompts"] == lines
        assert sorted(texts["lm-eval"]) == sorted(distinct.values())
        assert list(read(f"{folder}/rows.jsonl", "null")) == []
        assert [entry["prompt"] for entry in prompts_in(Path(folder, "lines.txt"))] == lines


@settings(max_examples=25, deadline=None)
@given(LINES, ENDS, st.sampled_from([".jsonl", ".txt"]))
def test_what_is_not_utf8_is_named_by_file_and_line(lines: list[str], end: str, suffix: str) -> None:
    written = [json.dumps({"prompt": line}) if suffix == ".jsonl" else line for line in lines]
    with TemporaryDirectory() as folder:
        file = Path(folder, f"latin{suffix}")
        file.write_bytes("".join(line + end for line in written).encode() + '{"prompt": "café"}'.encode("latin-1"))
        for texts in readers(file, "prompt").values():
            with pytest.raises((ValueError, UserError)) as refused:
                texts()
            assert f"{file}, line {len(lines) + 1}, is not UTF-8 at byte " in str(refused.value)


WIDE = [f"utf-{bits}{order}" for bits in (16, 32) for order in ("", "-le", "-be")]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("encoding", WIDE)
def test_a_wide_encoding_is_named_with_and_without_a_mark(tmp_path: Path, encoding: str, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    file.write_text('{"prompt": "text"}\n', encoding=encoding)
    for texts in readers(file, "prompt").values():
        with pytest.raises((ValueError, UserError), match=r"line 1, is UTF-16 or UTF-32 and not UTF-8; convert it"):
            texts()


def test_what_stands_for_a_text_that_is_elsewhere_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    for texts in readers(tmp_path / "a.txt", "prompt").values():
        with pytest.raises((ValueError, UserError), match=r"a\.txt is a pointer of Git LFS and not the text"):
            texts()


@pytest.mark.parametrize("name", ["p.json", "p.ndjson", "p.csv", "p.jsonl.gz", "p.pdf"])
def test_another_kind_of_file_is_refused_by_every_reader(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('["one", "two"]')
    for texts in readers(tmp_path / name, "prompt").values():
        with pytest.raises((ValueError, UserError), match=rf"{name} is no text; allowed: \.txt, "):
            texts()


def test_a_file_without_a_suffix_has_a_prompt_a_line(tmp_path: Path) -> None:
    """As a pipe of the shell has it."""
    (tmp_path / "stdin").write_text("a\nb\n")
    assert [entry["prompt"] for entry in prompts_in(tmp_path / "stdin")] == ["a", "b"]


def test_a_file_whose_name_is_no_text_is_refused_before_a_report_would_name_it(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    with pytest.raises(ValueError, match=r"the name .* has half a character"):
        files_of(str(tmp_path))


@pytest.mark.parametrize("place", ["", " "])
def test_no_place_is_not_the_current_folder(place: str) -> None:
    with pytest.raises(ValueError, match="no text is named"):
        files_of(place)


def test_prompts_are_rows_of_parquet_too(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"prompt": ["a", "b"], "id": [7, 8]}), tmp_path / "p.parquet")
    assert prompts_in(tmp_path / "p.parquet") == [{"prompt": "a", "id": 7}, {"prompt": "b", "id": 8}]


@pytest.mark.parametrize("row", ['{"prompt": null}', "[]", "7", '{"prompt": 7}', '{"prompt": "\\ud800"}', "{"])
def test_a_row_without_a_prompt_is_named_by_its_line(tmp_path: Path, row: str) -> None:
    (tmp_path / "p.jsonl").write_text(f'"a"\n\n{row}\n')
    with pytest.raises(UserError, match=r"p\.jsonl, line 3, "):
        prompts_in(tmp_path / "p.jsonl")


WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Cc", "Zl", "Zp"], exclude_characters="\ufeff"), min_size=1
)


@st.composite
def copies(draw: st.DrawFn) -> tuple[str, str]:
    """A text, and another form of it."""
    lines = draw(st.lists(WORDS, min_size=1, max_size=4))
    form = draw(st.sampled_from(["NFC", "NFD"]))
    spaces = st.sampled_from(["", " ", "\t "])
    end = draw(st.sampled_from(["\n", "\r\n", "\r", " \n"]))
    copy = end.join(unicodedata.normalize(form, line) for line in lines)
    return "\n".join(lines), draw(st.sampled_from(["", "\ufeff"])) + draw(spaces) + copy + draw(spaces) + draw(ENDS)


@settings(max_examples=60, deadline=None)
@given(copies())
def test_copies_have_one_form_and_other_texts_others(pair: tuple[str, str]) -> None:
    text, copy = (content_of(Document("", each)) for each in pair)
    assert text.form == copy.form and (text.hash == copy.hash) == (pair[0] == pair[1])
    assert content_of(Document("", pair[1] + "!")).form != text.form


@settings(max_examples=15, deadline=None)
@given(copies())
def test_a_copy_is_counted_once_and_refused_in_training(pair: tuple[str, str]) -> None:
    text, copy = pair
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "held").mkdir()
        (folder / "train.txt").write_text("training text " * 99)
        for name, content in (("a.txt", text), ("b.md", copy), ("other.txt", f"{text} not")):
            (folder / "held" / name).write_bytes(content.encode())
        held = Text(length=8, path=place, cache=f"{place}/cache")
        held.prepare()
        assert [Path(span.source).name for span in held.documents()] == ["a.txt", "other.txt"]
        assert "1 held-out document left out as copies of others" in held.used()
        (folder / "train-copy.txt").write_bytes(copy.encode())
        with pytest.raises(ValueError, match=r"a\.txt is held out and in the training texts too, as .*train-copy\.txt"):
            Text(length=8, path=place, cache=f"{place}/cache").prepare()


def test_hidden_files_and_links_back_are_left_out_and_said(tmp_path: Path) -> None:
    held = tmp_path / "held"
    for name in (".ipynb_checkpoints/a.txt", "deep/.git/b.txt", ".c.txt", "deep/d.txt"):
        (held / name).parent.mkdir(parents=True, exist_ok=True)
        (held / name).write_text(f"text of {name}")
    (held / "deep" / "back").symlink_to(held)
    (tmp_path / "train.txt").write_text("training text " * 99)
    assert [file.name for file in files_of(str(held))] == ["d.txt"]
    assert {path.name for path in hidden_in(str(held))} == {".ipynb_checkpoints", ".git", ".c.txt"}
    text = Text(length=8, path=str(tmp_path), cache=str(tmp_path / "cache"))
    text.prepare()
    assert len(text.documents()) == 1
    assert all(name in text.used() for name in (".ipynb_checkpoints", ".git", ".c.txt"))
    assert [path.name for path in files_of(str(held / ".c.txt"))] == [".c.txt"], "what is named is read"


def test_links_that_cross_give_each_folder_once_and_one_to_nothing_is_named(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
        (tmp_path / name / "across").symlink_to(tmp_path / other)
    assert sorted(file.name for file in files_of(str(tmp_path))) == ["a.txt", "b.txt"]
    (tmp_path / "b" / "away").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ValueError, match="away is a link to nothing; mend it"):
        files_of(str(tmp_path))


def test_tokens_of_before_are_found(tmp_path: Path) -> None:
    """The digest is of the exact texts and of the tokenizer, as it was before copies were looked for."""
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbfline\r\nline " + b"text " * 99)
    (tmp_path / "held.txt").write_bytes(b" held\r\n")
    text = Text(length=8, path=str(tmp_path), cache=str(tmp_path / "cache"))
    contents = [(tmp_path / name).read_bytes().removeprefix(BOM) for name in ("train.txt", "held.txt")]
    named = [json.dumps([2, "bytes-1", [hashlib.sha256(content).hexdigest()]]) for content in contents]
    digests = " ".join(hashlib.sha256(facts.encode()).hexdigest() for facts in named)
    assert text.digest() == hashlib.sha256(f"{digests} {text.validation}".encode()).hexdigest()


def test_copies_are_found_among_tokens_of_before_there_were_forms(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("training text\n" * 99)
    (tmp_path / "held.txt").write_text("other text")
    prepared = partial(Text, length=8, path=str(tmp_path), cache=str(tmp_path / "cache"))
    prepared().prepare()
    for place in (path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")):
        facts = json.loads((place / FACTS).read_text())
        (place / FACTS).write_text(json.dumps({key: facts[key] for key in facts if key not in ("forms", "dropped")}))
        sums.write(place)
    prepared().prepare()
    (tmp_path / "held-copy.txt").write_text("training text\r\n" * 99)
    with pytest.raises(ValueError, match=r"held-copy\.txt is held out and in the training texts too"):
        prepared().prepare()
