"""Tokenizers: text comes back from its tokens, a name says which it is, and a wrong file is one line."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.tasks.text import corpus, tokenizers
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.tokenizers import Bytes, Numbers, from_file


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_bytes_come_back_as_the_text(text: str) -> None:
    tokens = Bytes().encode(text)
    assert Bytes().decode([Bytes.bos, *tokens, Bytes.eos]) == text
    assert all(0 <= token < Bytes.vocab_size for token in tokens)


def test_numbers_are_their_own_text() -> None:
    numbers = Numbers(16)
    assert numbers.decode(numbers.encode("3 0  15")) == "3 0 15"
    for text in ("16", "-1", "three"):
        with pytest.raises(ValueError, match="0 to 15"):
            numbers.encode(text)


def test_no_file_is_bytes() -> None:
    assert isinstance(from_file(None), Bytes)


def json_file(path: Path, *tokens: str) -> Path:
    """A `tokenizer.json` of these characters and one for all others."""
    made = pytest.importorskip("tokenizers")
    vocabulary = {token: number for number, token in enumerate(["?", *tokens])}
    fast = made.Tokenizer(made.models.WordLevel(vocabulary, unk_token="?"))
    fast.pre_tokenizer = made.pre_tokenizers.Split("", "isolated")
    fast.decoder = made.decoders.Fuse()
    fast.save(str(path))
    return path


def test_a_file_is_named_by_its_content(tmp_path: Path) -> None:
    one, two = json_file(tmp_path / "one.json", "a", "b"), json_file(tmp_path / "two.json", "b", "a")
    (tmp_path / "copy.json").write_bytes(one.read_bytes())
    first, second, copy = (from_file(str(path)) for path in (one, two, tmp_path / "copy.json"))
    assert first.encode("abba") == [1, 2, 2, 1] and first.vocab_size == 3
    assert first.decode(first.encode("abba")) == "abba"
    assert first.name == copy.name != second.name
    assert len({first.name, second.name, Bytes().name, Numbers(3).name, Numbers(4).name}) == 5


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    json_file(tmp_path / "mine.json", "a")
    assert from_file("~/mine.json").vocab_size == 2


def test_a_sentencepiece_file_is_read(tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"),
        model_prefix=str(tmp_path / "small"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    found = from_file(str(tmp_path / "small.model"))
    assert found.decode(found.encode("the lazy fox")) == "the lazy fox"
    assert max(found.encode("the quick dog")) < found.vocab_size and found.name.startswith("sentencepiece-")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing.json", None, "is no file"),
        ("nothing.model", None, "is no file"),
        ("words.txt", b"", "allowed: the path of a tokenizer.json or tokenizer.model, or null for bytes"),
        ("broken.json", b"{", "cannot be read"),
        ("broken.model", b"{", "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("sentencepiece")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as refused:
        from_file(str(tmp_path / name))
    assert words in str(refused.value) and name in str(refused.value) and "\n" not in str(refused.value)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdé世 \n"), st.integers(0, 70_000), min_size=1),
    st.booleans(),
    st.text("abcdé世 \n", min_size=1).filter(str.strip),
)
def test_sizes_follow_the_largest_id_and_what_is_dropped_is_counted(
    ids: dict[str, int], with_unknown: bool, text: str
) -> None:
    """Of characters with any ids, some left out, with and without a token for what is unknown."""
    made = pytest.importorskip("tokenizers")
    vocabulary = dict(zip(ids, sorted({*ids.values()}), strict=False))
    unknown = {"[UNK]": 70_001} if with_unknown else {}
    fast = made.Tokenizer(made.models.BPE({**vocabulary, **unknown}, [], unk_token=next(iter(unknown), None)))
    fast.pre_tokenizer = made.pre_tokenizers.Split("", "isolated")
    with TemporaryDirectory() as folder:
        fast.save(f"{folder}/own.json")
        found = from_file(f"{folder}/own.json")
        tokens, dropped = found.read(text)
        assert found.vocab_size == max(fast.get_vocab().values()) + 1
        assert tokens == found.encode(text) and dropped == sum(len(c.encode()) for c in text if c not in vocabulary)
        if tokens:
            held = corpus.build(lambda: [Document("a", text)], found, Path(folder, "cache"))
            assert held.document(0).tokens.tolist() == tokens and held.dropped == dropped
        else:
            with pytest.raises(ValueError, match="the tokenizer has no token for any of these documents"):
                corpus.build(lambda: [Document("a", text)], found, Path(folder, "cache"))


def test_white_space_that_no_token_has_is_dropped(tmp_path: Path) -> None:
    made = pytest.importorskip("tokenizers")
    fast = made.Tokenizer(made.models.WordLevel({"[UNK]": 0, "the": 1, "of": 300}, unk_token="[UNK]"))
    fast.pre_tokenizer = made.pre_tokenizers.Whitespace()
    fast.save(str(tmp_path / "own.json"))
    found = from_file(str(tmp_path / "own.json"))
    assert found.vocab_size == 301 and found.read("the é  of\n") == ([1, 0, 300], 6)


@pytest.mark.parametrize("trim", [True, False])
def test_bytes_as_tokens_drop_nothing(tmp_path: Path, trim: bool) -> None:
    made = pytest.importorskip("tokenizers")
    alphabet = sorted(made.pre_tokenizers.ByteLevel.alphabet())
    fast = made.Tokenizer(made.models.BPE({name: number for number, name in enumerate(alphabet)}, []))
    fast.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.post_processor = made.processors.ByteLevel(trim_offsets=trim)
    fast.save(str(tmp_path / "own.json"))
    assert from_file(str(tmp_path / "own.json")).read(" a  é\n\n世 ").dropped == 0


def bytewise(path: Path, **parts: Any) -> tokenizers.Tokenizer:
    """A tokenizer of bytes with other parts, such as a normaliser, from its file."""
    made = pytest.importorskip("tokenizers")
    vocabulary = {char: number for number, char in enumerate(made.pre_tokenizers.ByteLevel.alphabet())}
    fast = made.Tokenizer(made.models.BPE(vocabulary, []))
    fast.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
    for name, part in parts.items():
        setattr(fast, name, part)
    fast.save(str(path))
    return from_file(str(path))


NORMALIZERS = {
    "NFC": ("a é e", ""),
    "NFKC": ("fin ﬁn", "ﬁ"),
    "Lowercase": ("at aT", "T"),
    "BertNormalizer": ("At at\né e", "A\né"),
    "Strip": (" a\n", " \n"),
}
"""What each takes away of a text."""


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("kind", NORMALIZERS)
def test_what_a_normaliser_takes_away_is_counted(tmp_path: Path, kind: str, decodes: bool) -> None:
    made = pytest.importorskip("tokenizers")
    text, lost = NORMALIZERS[kind]
    decoder = {"decoder": made.decoders.ByteLevel()} if decodes else {}
    found = bytewise(tmp_path / "own.json", normalizer=getattr(made.normalizers, kind)(), **decoder)
    assert found.read(text).dropped == len(lost.encode())


def test_how_unicode_composes_a_character_is_not_lost(tmp_path: Path) -> None:
    made = pytest.importorskip("tokenizers")
    parts = {"normalizer": made.normalizers.NFC(), "decoder": made.decoders.ByteLevel()}
    assert bytewise(tmp_path / "own.json", **parts).read("e\u0301").dropped == 0


def test_what_is_undone_in_decoding_is_not_lost(tmp_path: Path) -> None:
    made = pytest.importorskip("tokenizers")
    text = "The  ﬁne\n"
    fast = made.Tokenizer(made.models.BPE({char: number for number, char in enumerate({*text, "▁"})}, []))
    fast.normalizer = made.normalizers.Sequence([made.normalizers.Prepend("▁"), made.normalizers.Replace(" ", "▁")])
    parts = [made.decoders.Replace("▁", " "), made.decoders.Fuse(), made.decoders.Strip(" ", 1, 0)]
    fast.decoder = made.decoders.Sequence(parts)
    fast.save(str(tmp_path / "own.json"))
    assert from_file(str(tmp_path / "own.json")).read(text).dropped == 0


@pytest.mark.parametrize(("template", "bos"), [("[X] $A", 900), ("$A [X]", None), ("[X] $A [X]", 900)])
def test_a_token_that_ends_a_text_does_not_begin_one(tmp_path: Path, template: str, bos: int | None) -> None:
    made = pytest.importorskip("tokenizers")
    processor = made.processors.TemplateProcessing(single=template, special_tokens=[("[X]", 900)])
    found = bytewise(tmp_path / "own.json", post_processor=processor)
    assert (found.bos, found.vocab_size) == (bos, 901)


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc", "nmt_nfkc_cf"])
@pytest.mark.parametrize("of_bytes", [True, False])
def test_sentencepiece_says_what_it_drops(tmp_path: Path, rule: str, of_bytes: bool) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"),
        model_prefix=str(tmp_path / "own"),
        vocab_size=340 if of_bytes else 60,
        hard_vocab_limit=False,
        byte_fallback=of_bytes,
        normalization_rule_name=rule,
        remove_extra_whitespaces=rule != "identity",
        minloglevel=2,
    )
    found = from_file(str(tmp_path / "own.model"))
    assert found.read("the quick dog").dropped == 0
    assert found.read("the ☃ dog").dropped == (0 if of_bytes else 3)
    assert found.read("the\ndog").dropped == (0 if of_bytes and rule == "identity" else 1)
    assert found.read("the Dog").dropped == (0 if of_bytes and not rule.endswith("cf") else 1)


@pytest.mark.parametrize("known", [Bytes(), Numbers(3)])
def test_it_is_a_tokenizer(known: tokenizers.Tokenizer) -> None:
    assert isinstance(known, tokenizers.Tokenizer)
