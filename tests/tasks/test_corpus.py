"""Texts: what is read and what is refused, tokens found again, windows that know where documents begin."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.tasks.text import corpus
from evalkit.tasks.text.corpus import Corpus, Window, build, build_named, is_built, load, refuse_shared
from evalkit.tasks.text.documents import Document, files_of, read
from evalkit.tasks.text.tokenizers import Bytes


class Plain(Bytes):
    """Bytes without the two tokens that are none: one byte a token on the disk."""

    name = "plain"
    vocab_size = 256


class Refusing(Plain):
    """Tokenises nothing, so what it gives was found."""

    def encode(self, text: str) -> list[int]:
        raise AssertionError(text)


class Interrupted(Plain):
    """A process that is stopped while it tokenises."""

    def encode(self, text: str) -> list[int]:
        raise KeyboardInterrupt


def documents(*texts: str) -> list[Document]:
    return [Document(f"{i}.txt", text) for i, text in enumerate(texts)]


def places(folder: Path) -> list[Path]:
    """What a folder of tokens holds, beside the locks of those who make them."""
    return [path for path in folder.iterdir() if path.name != corpus.LOCKS]


def made(folder: Path, *texts: str) -> Corpus:
    return build(lambda: documents(*texts), Plain(), folder)


def tokens_of(held: Corpus) -> list[bytes]:
    return [bytes(held.document(i).tokens) for i in range(len(held))]


def rows(window: Window) -> Iterator[tuple[bytes, bytes, Sequence[bool], Sequence[int]]]:
    for tokens, targets, mask, positions in zip(*window, strict=True):
        yield bytes(tokens.tolist()), bytes(targets.tolist()), mask.tolist(), positions.tolist()


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    (tmp_path / "b.txt").write_text("zwei", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.tex").write_text("été", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "three"}\n\n{"text": "four"}\n', encoding="utf-8")
    parquet.write_table(table({"text": ["five", "six"]}), tmp_path / "d.parquet")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert [document.text for document in read(str(tmp_path))] == ["zwei", "three", "four", "five", "six", "été"]
    assert [document.text for document in read(str(tmp_path / "*.txt"))] == ["zwei"]
    assert [Path(document.source).name for document in read(str(tmp_path / "c.jsonl"))] == ["c.jsonl#0", "c.jsonl#2"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("", None, "holds no .txt, .tex"),
        ("nowhere", None, "is no file, no folder and no pattern"),
        ("a.bin", b"x", "is no text; allowed: .txt"),
        ("a.txt", b"caf\xe9", "a.txt, line 1, is not UTF-8 at byte 3; convert it"),
        ("a.jsonl", b'{"text": "x"}\n{"text"', "line 2, is not JSON"),
        ("a.jsonl", b'{"body": "x"}', "a.jsonl, line 1, has no text in 'text'; it has body"),
        ("a.parquet", b"no parquet", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as refused:
        list(read(str(tmp_path / name)))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_without_permission_is_one_line(shut: Path) -> None:
    (shut / "a.txt").touch(mode=0o000)
    with pytest.raises(ValueError, match=r"a\.txt cannot be read \(Permission denied\); let it be read"):
        list(read(str(shut)))


def test_a_folder_without_permission_is_one_line(shut: Path) -> None:
    folder = shut / "shut"
    folder.mkdir(mode=0o000)
    for place in (folder, folder / "a.txt"):
        with pytest.raises(ValueError, match=r"cannot be read \(Permission denied\); let it be read"):
            list(read(str(place)))


def test_files_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "c.tex"):
        (tmp_path / name).touch()
    assert [file.name for file in files_of(str(tmp_path))] == ["a.md", "b.txt", "c.tex"]


def test_tokens_are_made_once_for_the_same_texts_and_tokenizer(tmp_path: Path) -> None:
    first = made(tmp_path, "abc", "", "défgh")
    assert tokens_of(first) == [b"abc", "défgh".encode()] and first.tokens.dtype == np.uint8
    assert first.sizes.tolist() == [3, 6] and first.bytes == first.total == 9 and first.bytes_per_token == 1
    moved = build(lambda: [Document("x", "abc"), Document("y", "défgh")], Refusing(), tmp_path)
    assert tokens_of(moved) == tokens_of(first) and moved.digest == first.digest
    assert moved.sources == ["x", "y"]  # where they are now
    assert len(places(tmp_path)) == 1


def test_other_texts_and_other_tokenizers_are_others(tmp_path: Path) -> None:
    held = [made(tmp_path, "abc", "def"), made(tmp_path, "abcdef"), made(tmp_path, "def", "abc")]
    held.append(build(lambda: documents("abc", "def"), Bytes(), tmp_path))
    assert len({each.digest for each in held}) == len(places(tmp_path)) == 4
    assert held[3].tokens.dtype == np.uint16


@pytest.mark.parametrize("texts", [[], [""], [" \n"]])
def test_documents_without_text_are_one_line(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no text in these documents; give others"):
        made(tmp_path, *texts)
    assert not places(tmp_path)


def test_half_a_character_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.txt is no Unicode at character 2; leave it out"):
        made(tmp_path, "ab\ud800")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/inner cannot be written \(Not a directory\)"):
        made(tmp_path / "file" / "inner", "abc")


def test_texts_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    versions = iter(["before", "after"])
    with pytest.raises(ValueError, match="the texts changed while they were read; start again"):
        build(lambda: documents(next(versions)), Plain(), tmp_path)
    assert not places(tmp_path)


def test_a_named_corpus_is_found_without_its_documents(tmp_path: Path) -> None:
    def unreachable() -> list[Document]:
        raise AssertionError

    assert not is_built(["set", None], Plain(), tmp_path)
    first = build_named(lambda: documents("abc"), ["set", None], Plain(), tmp_path)
    assert is_built(["set", None], Plain(), tmp_path) and not is_built(["set", "2"], Plain(), tmp_path)
    again = build_named(unreachable, ["set", None], Plain(), tmp_path)
    assert tokens_of(again) == [b"abc"] and again.digest == first.digest == made(tmp_path, "abc").digest


def test_memory_holds_one_document_at_a_time(tmp_path: Path) -> None:
    size = 100_000

    def many() -> Iterator[Document]:
        return (Document(str(i), chr(97 + i % 26) * size) for i in range(100))

    tracemalloc.start()
    held = build(many, Plain(), tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held.total == 100 * size and most < 30 * size


def test_an_interrupted_build_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(lambda: documents("abc"), Interrupted(), tmp_path)
    assert not places(tmp_path)
    assert tokens_of(made(tmp_path, "abc")) == [b"abc"]


@pytest.mark.parametrize("name", [corpus.TOKENS, corpus.ENDS, corpus.SIZES, corpus.FACTS])
@pytest.mark.parametrize("left", [None, 0, 0.5])
def test_what_is_half_written_is_rebuilt_and_never_read(tmp_path: Path, name: str, left: float | None) -> None:
    """A part of one of its files, or the file missing, as after a kill or a power failure."""
    made(tmp_path, "abc", "defgh")
    (place,) = places(tmp_path)
    content = (place / name).read_bytes()
    (place / name).unlink()
    if left is not None:
        (place / name).write_bytes(content[: int(len(content) * left)])
    assert load(place) is None
    assert tokens_of(made(tmp_path, "abc", "defgh")) == [b"abc", b"defgh"] and places(tmp_path) == [place]


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / f"{corpus.UNFINISHED}old", tmp_path / f"{corpus.UNFINISHED}new"
    for left in (old, new):
        left.mkdir()
        (left / corpus.TOKENS).write_bytes(b"ab")
    for path in (old / corpus.TOKENS, old):
        os.utime(path, (0, 0))
    made(tmp_path, "abc")
    assert new.is_dir() and not old.exists()


def test_a_corpus_outlives_its_folder(tmp_path: Path) -> None:
    """It is mapped: another process may put a new one in its place."""
    held = made(tmp_path, "abc")
    shutil.rmtree(tmp_path)
    assert tokens_of(held) == [b"abc"]


def test_windows_are_a_function_of_seed_and_step_and_know_where_documents_begin(tmp_path: Path) -> None:
    texts = ["abcdefghij", "k", "", "lmnopqrstuvwxyz"]
    held = made(tmp_path, *texts)
    joined, begins = "".join(texts).encode(), {0, 10, 11}
    one, same = held.windows(3, 7, 400, 6), held.windows(3, 7, 400, 6)
    for mine, its in zip(one, same, strict=True):
        np.testing.assert_array_equal(mine, its)
    for other in (held.windows(3, 8, 400, 6), held.windows(4, 7, 400, 6)):
        assert (one.tokens != other.tokens).any()
    seen = set()
    for tokens, targets, mask, positions in rows(one):
        start = joined.index(tokens)
        seen.add(start)
        assert targets == joined[start + 1 : start + 7]
        assert mask == [start + i + 1 not in begins for i in range(6)]
        position = -1
        for i in range(6):
            position = 0 if i == 0 or start + i in begins else position + 1
            assert positions[i] == position
    assert seen == set(range(len(joined) - 6))


@pytest.mark.parametrize("length", [0, -1, 26])
def test_a_window_that_does_not_fit_is_one_line(tmp_path: Path, length: int) -> None:
    held = made(tmp_path, "abcdefghijklmnopqrstuvwxyz")
    assert held.windows(0, 0, 1, 25).tokens.shape == (1, 25)
    for cut in (held.windows, lambda seed, step, batch, length: held.spread(step, batch, length)):
        with pytest.raises(ValueError, match=f"length={length}; allowed: 1 to 25"):
            cut(0, 0, 1, length)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=40), min_size=1, max_size=5), st.floats(0.01, 0.99))
def test_heads_and_tails_share_nothing_and_leave_nothing_out(texts: list[str], fraction: float) -> None:
    with TemporaryDirectory() as folder:
        held = made(Path(folder), *texts)
        heads, tails = held.heads(fraction), held.tails(fraction)
        assert [head + tail for head, tail in zip(tokens_of(heads), tokens_of(tails), strict=True)] == tokens_of(held)
        assert heads.total + tails.total == held.total
        assert all(len(tail) == int(len(text) * fraction) for tail, text in zip(tokens_of(tails), texts, strict=True))
        assert heads.bytes == heads.total and tails.bytes == tails.total


def test_windows_of_a_view_have_its_tokens_alone_and_pack_across_them(tmp_path: Path) -> None:
    held = made(tmp_path, "abcdefgH", "ijklmnoP", "qrstuvwX").tails(1 / 8)
    joined = b"HPX"
    for tokens, targets, mask, positions in rows(held.windows(0, 0, 50, 2)):
        assert (tokens, targets) == (b"HP", b"PX") and mask == [False, False] and positions == [0, 0]
    assert {tokens for tokens, *_ in rows(held.spread(0, 9, 1))} == {joined[:1], joined[1:2]}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_spread_windows_do_not_depend_on_the_batch(first: int, batch: int) -> None:
    with TemporaryDirectory() as folder:
        held = made(Path(folder), "abcdefghijklmnopqrstuvwxyz", "0123456789")
        together = held.spread(first, batch, 5)
        for i in range(batch):
            for all_of_them, one in zip(together, held.spread(first + i, 1, 5), strict=True):
                np.testing.assert_array_equal(all_of_them[i], one[0])


def test_spread_windows_cover_the_corpus_evenly(tmp_path: Path) -> None:
    held = made(tmp_path, "".join(map(chr, range(128))))
    for count in (10, 50, 100):
        begins = np.sort(held.spread(0, count, 1).tokens[:, 0])
        assert np.diff(begins, prepend=0, append=127).max() <= 3 * 127 / count + 1


def test_a_held_out_document_that_is_trained_on_is_refused(tmp_path: Path) -> None:
    training, held_out = made(tmp_path, "abc", "def"), made(tmp_path, "ghi")
    refuse_shared(training, held_out)
    with pytest.raises(ValueError, match=r"0\.txt is held out and in the training texts too, as 1\.txt"):
        refuse_shared(training, made(tmp_path, "def"))


def test_a_cache_says_what_it_holds(tmp_path: Path) -> None:
    made(tmp_path, "abc", "defgh")
    (place,) = places(tmp_path)
    facts = json.loads((place / corpus.FACTS).read_text())
    assert facts["sources"] == ["0.txt", "1.txt"] and facts["tokenizer"] == "plain"


def test_of_many_short_documents_some_are_kept_for_validation_as_a_whole(tmp_path: Path) -> None:
    """The last few tokens of each, with nothing before them, would say nothing of a model."""
    texts = [Document(f"{number}", f"{number:04d}" * 20) for number in range(800)]
    whole = build(lambda: texts, Bytes(), tmp_path)
    heads, tails = whole.heads(1 / 16), whole.tails(1 / 16)
    kept = tails.ends - tails.starts
    assert set(kept.tolist()) == {0, 80} and heads.total + tails.total == whole.total
    assert 0.5 / 16 < (kept > 0).mean() < 2 / 16
    assert tails.windows(0, 0, 4, 40).mask.mean() > 0.9
    again = build(lambda: texts[::-1], Bytes(), tmp_path).tails(1 / 16)
    np.testing.assert_array_equal((again.ends - again.starts)[::-1], kept)


def test_copies_of_a_document_that_is_kept_for_validation_are_kept_too(tmp_path: Path) -> None:
    """The same rows with other ends of lines."""
    lines = [f"{number:04d}\n" * 20 for number in range(400)]
    texts = [
        Document(f"{at}", text) for at, text in enumerate([*lines, *(line.replace("\n", "\r\n") for line in lines)])
    ]
    tails = build(lambda: texts, Bytes(), tmp_path).tails(1 / 16)
    kept = tails.ends > tails.starts
    assert kept.any() and (kept[:400] == kept[400:]).all()


def test_rows_end_at_line_feeds_alone_and_null_is_no_text(tmp_path: Path) -> None:
    """JSON may hold what Unicode calls an end of line, and editors begin files with a mark."""
    lines = [b'\xef\xbb\xbf{"text": "a\xe2\x80\xa8b"}', b'{"text": null}', b"", b'{"text": "c\xc2\x85d"}\r']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert [(d.source[-7:], d.text) for d in read(str(tmp_path))] == [("jsonl#0", "a\u2028b"), ("jsonl#3", "c\x85d")]
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfwhole")
    assert [d.text for d in read(str(tmp_path))] == ["whole"]


@pytest.mark.slow
def test_rows_are_read_one_at_a_time(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 10_000}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 2_000)
    tracemalloc.start()
    assert sum(len(document.text) for document in read(str(tmp_path))) == 20_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_column_with_nulls_and_a_damaged_page(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    texts = ["one", None, "three" * 1000]
    parquet.write_table(pyarrow.table({"text": texts}), file, compression="none", use_dictionary=False)
    assert [document.text for document in read(str(file))] == ["one", "three" * 1000]
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.parquet cannot be read \(.*\); give another copy of it"):
        list(read(str(file)))


def test_linked_folders_and_upper_case_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "A.TXT").write_text("a")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    assert [document.text for document in read(str(tmp_path / "near"))] == ["a"]


def test_the_faster_of_two_processes_wins_and_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [Document("a", "some text")]
    write = corpus._write

    def slowly(documents: Sequence[Document], tokenizer: Bytes, folder: Path) -> None:
        monkeypatch.setattr(corpus, "_write", write)
        build(lambda: texts, Bytes(), tmp_path)  # another process, meanwhile
        write(documents, tokenizer, folder)

    monkeypatch.setattr(corpus, "_write", slowly)
    monkeypatch.setattr(corpus, "_alone", nullcontext)  # as on a file system that has no locks
    assert build(lambda: texts, Bytes(), tmp_path).total == 9
    (place,) = places(tmp_path)
    assert place.stat().st_mode & 0o777 == 0o755, "others who share the folder cannot read it"
