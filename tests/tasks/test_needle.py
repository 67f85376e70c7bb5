"""Needles: what hides where, that one who reads finds all, and that bytes and text are one task."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from evalkit.evaluations.needle.rows import share_found
from evalkit.tasks.needle import KINDS, NOISE, SENTENCES, Needle, word
from evalkit.tasks.needle_bytes import BEGIN, NeedleBytes
from evalkit.tasks.text.tokenizers import Bytes

SECRET = r"The secret \w+ of ([\w-]+) is ([\w-]+)\."
# What RULER's tasks hide and ask for: keys and values in the text, values in the answer (Hsieh et al. 2024, table 2,
# and the settings released with it).
RULER: list[tuple[dict[str, Any], tuple[int, int, int]]] = [
    ({}, (1, 1, 1)),
    ({"value": "uuids"}, (1, 1, 1)),
    ({"keys": 4}, (4, 4, 1)),
    ({"haystack": "needles"}, (51, 51, 1)),
    ({"haystack": "needles", "key": "uuids", "value": "uuids"}, (51, 51, 1)),
    ({"values": 4}, (1, 4, 4)),
    ({"queries": 4}, (4, 4, 4)),
]


def needles(prompt: str) -> list[tuple[str, str]]:
    """Key and value of every needle."""
    return re.findall(SECRET, prompt.rpartition("\n\n")[0])


@st.composite
def tasks(draw: st.DrawFn) -> Needle:
    return Needle(
        haystack=draw(st.sampled_from(["noise", "needles"])),
        key=draw(st.sampled_from(["words", "uuids"])),
        value=draw(st.sampled_from(list(KINDS))),
        keys=draw(st.integers(1, 4)),
        values=draw(st.integers(1, 3)),
        queries=draw(st.integers(1, 3)),
        depth=draw(st.sampled_from([None, 0.0, 0.3, 1.0])),
        seed=draw(st.integers(0, 2**40)),
    )


@settings(max_examples=60, deadline=None)
@given(task=tasks(), sentences=st.integers(1, 60), index=st.integers(0, 1000))
def test_one_who_reads_the_text_knows_every_answer(task: Needle, sentences: int, index: int) -> None:
    hidden = task.example(sentences, index)
    assert hidden == task.example(sentences, index)
    asked = re.split(r", | and ", re.findall(r"The secret \w+ of ([\w, -]+) (?:is|are)$", hidden.prompt)[0])
    given_ = needles(hidden.prompt)
    assert len(asked) == task.queries and len(hidden.answers) == task.queries * task.values
    values = [value for key in asked for name, value in given_ if name == key]
    assert sorted(values) == sorted(hidden.answers) and share_found(" ".join(values), hidden.answers) == 1
    assert len({value for _, value in given_}) == len(given_), "two needles have one value"
    assert hidden.prompt[hidden.place :].startswith("The secret ")
    if task.depth is not None and task.queries * task.values == 1:
        before = re.split(r"(?<=\.) ", hidden.prompt[: hidden.place].partition("\n\n")[2].strip())
        around = [
            sentence for sentence in before if sentence and not (task.haystack == "noise" and "secret" in sentence)
        ]
        others = 0 if task.haystack == "noise" else task.keys - 1  # which look like the text
        assert abs(len(around) - round(task.depth * sentences)) <= others


@pytest.mark.parametrize(("words", "counts"), RULER, ids=str)
def test_needles_are_as_many_as_in_rulers_tasks(words: dict[str, Any], counts: tuple[int, int, int]) -> None:
    hidden = Needle(**words).example(50, 0)
    named = needles(hidden.prompt)
    assert (len({key for key, _ in named}), len(named), len(hidden.answers)) == counts
    lengths = {"numbers": 7, "uuids": 36}
    assert {len(answer) for answer in hidden.answers} == {lengths[words.get("value", "numbers")]}


def test_places_are_uniform_where_no_depth_is_given() -> None:
    places = [Needle().example(9, index).depth for index in range(600)]
    assert chisquare(np.bincount(np.rint(np.asarray(places) * 9).astype(int), minlength=10)).pvalue > 1e-3


@pytest.mark.parametrize("words", [{}, {"haystack": "needles"}, {"values": 3, "value": "uuids"}], ids=str)
@pytest.mark.parametrize("length", [1000, 5000, 131_072])
def test_prompts_have_the_length_that_is_asked_for(words: dict[str, Any], length: int) -> None:
    task = Needle(**words)
    size = task.sentences_for(length, len)
    lengths = [len(task.example(size, index).prompt) for index in range(8)]
    assert abs(np.mean(lengths) - length) < 45


def test_a_book_hides_them_as_well(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("It rained.  Was it late?\nNo! He went\nhome. " * 3, encoding="utf-8")
    prompts = [Needle(haystack=str(book)).example(7, index).prompt for index in range(20)]
    assert all("He went home." in prompt and len(needles(prompt)) == 1 for prompt in prompts)
    assert len({prompt.partition("\n\n")[2].split(" ")[0] for prompt in prompts}) > 1, "all begin with one sentence"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"haystack": "nowhere.txt"},
            "haystack='nowhere.txt' is none of noise, needles, and as texts: nowhere.txt is no file",
        ),
        ({"key": "numbers"}, "key='numbers'; allowed: words, uuids"),
        ({"value": "x"}, "value='x'; allowed: numbers, words, uuids"),
        ({"keys": 0}, "keys=0; allowed: 1 or more"),
        ({"depth": 2.0}, "depth=2.0; allowed: 0"),
    ],
)
def test_what_cannot_be_hidden_is_one_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Needle(**words).example(5, 0)


def test_an_empty_book_and_a_short_prompt_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ValueError, match="has no text; give other texts"):
        Needle(haystack=str(tmp_path / "empty.txt")).example(5, 0)
    with pytest.raises(ValueError, match=r"length=20; allowed: at least \d+, the tokens of one sentence"):
        Needle().sentences_for(20, len)


@cache
def sampler(keys: int, digits: int, length: int) -> Any:
    return jax.jit(jax.vmap(lambda key: NeedleBytes(keys=keys, digits=digits).sample(key, length)))


@pytest.mark.parametrize(("keys", "digits", "length"), [(1, 7, 512), (3, 4, 300), (1, 7, 118)])
def test_bytes_follow_the_rule_and_are_the_text_of_a_checkpoint(keys: int, digits: int, length: int) -> None:
    task = NeedleBytes(keys=keys, digits=digits)
    example = jax.device_get(sampler(keys, digits, length)(jax.random.split(jax.random.key(keys), 40)))
    assert task.vocab_size == Bytes.vocab_size and Bytes.bos == BEGIN
    for tokens, targets, mask in zip(example.tokens, example.targets, example.mask, strict=True):
        right, where = task.solve(tokens)
        np.testing.assert_array_equal(targets, right)
        np.testing.assert_array_equal(mask, where)
        assert len(tokens) == length + task.answer_length and mask.sum() == digits + 2 == task.scored
        text = Bytes().decode(tokens.tolist())
        prompt, answer = text[: length - 1], text[length - 1 :]
        named = needles(prompt)
        assert tokens[0] == Bytes.bos and len(named) == keys
        # The same sentences around as in the text: cut at the end, and the needles between them.
        body = re.sub(SECRET + " ", "", prompt.partition("\n\n")[2].rpartition("\n\n")[0])
        assert (NOISE * 20).startswith(body)
        asked = Needle(keys=keys).example(5, 0).prompt.split("\n\n")
        assert prompt.startswith(asked[0]) and re.sub(r"of \w+", "", prompt.split("\n\n")[-1]) == re.sub(
            r"of \w+", "", asked[-1]
        )
        assert answer == " " + dict(named)[re.findall(r"of (\w+) is$", prompt)[0]]


def test_the_places_of_bytes_are_uniform() -> None:
    drawn = jax.device_get(sampler(1, 7, 400)(jax.random.split(jax.random.key(5), 400)).tokens)
    places = [Bytes().decode(tokens.tolist()).index("The secret") for tokens in drawn]
    begins = sorted(set(places))
    assert chisquare(np.unique(places, return_counts=True)[1]).pvalue > 1e-3
    room = 400 - 1 - 44 - 27 - 41
    wanted = len([at for at in range(room) if (NOISE * 9)[:at].endswith(". ") or at == 0])
    assert len(begins) == wanted > len(SENTENCES)


def test_words_are_different_and_pronounceable() -> None:
    words = {word(number) for number in range(0, 343_000, 997)}
    assert len(words) == len(range(0, 343_000, 997)) and all(re.fullmatch(r"([b-z][aeiou]){3}", each) for each in words)


def test_what_does_not_fit_is_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"length=64 is too short for keys=1 and digits=7; use a length of at least 118"
    ):
        NeedleBytes(length=64)


def test_found_counts_whole_values_whatever_is_said_around() -> None:
    assert share_found("It is 12, or AB-c.", ["12", "ab-C"]) == 1 and share_found("", ["1"]) == 0
    assert share_found(" 9120", ["12"]) == share_found("x12", ["12"]) == 0, "a part of a longer number is none"


@pytest.mark.parametrize("length", [4000, 65_536])
def test_prompts_from_a_book_of_uneven_sentences_have_their_length(length: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sentences = ["".join(random.choice(list("abc "), random.geometric(0.01))) + "x." for _ in range(400)]
    (tmp_path / "book.txt").write_text(" ".join(sentences))
    task = Needle(haystack=str(tmp_path / "book.txt"))
    size = task.sentences_for(length, len)
    assert abs(np.mean([len(task.example(size, index).prompt) for index in range(8)]) - length) < 200


def test_as_many_needles_as_there_are_no_words_for_are_refused() -> None:
    with pytest.raises(ValueError, match="needles; allowed: below"):
        Needle(keys=400_000)
    with pytest.raises(ValueError, match="or there would be no more words"):
        Needle(haystack="needles").example(300_000, 0)


def test_at_a_depth_all_answers_stand_together() -> None:
    for depth in (0.0, 0.5, 1.0):
        hidden = Needle(values=3, depth=depth).example(40, 1)
        body = re.sub(SECRET + " ?", "|", hidden.prompt.partition("\n\n")[2].rpartition("\n\n")[0])
        assert "|||" in body and abs(body.index("|") / len(body) - depth) < 0.05
