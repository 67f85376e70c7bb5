"""The phonebook in text: its exact form, unique names, one text a number, and an answer that a reader finds."""

import re

import jax
import numpy as np
import pytest

from evalkit.tasks.base import distinct
from evalkit.tasks.phonebook import VARIANTS, Phonebook

GOLDEN = """\
Elaine Banks: 9071266885
Elizabeth Fox: 7960633902
Leonard Hunt: 6048875279
Carol Hunt: 9749896114

Elaine Banks: 9071266885
Carol Hunt: 9749896114

Leonard Hunt:"""


def test_the_text_is_what_it_always_was() -> None:
    """Format of Jelassi et al. 2024; if this fails unmeant, results are no longer comparable with earlier ones."""
    lookup = Phonebook().example(entries=4, index=0)
    assert lookup.prompt == GOLDEN
    assert lookup.answer == "6048875279" and lookup.depth == pytest.approx(2 / 3) and lookup.entries == 4
    assert lookup.prompt[lookup.place :].startswith("Leonard Hunt: 6048875279\n")


def parsed(prompt: str) -> tuple[list[tuple[str, str]], str]:
    """Every entry's line, and the name asked for, by a reader that knows neither the layout nor the generator."""
    entries = re.findall(r"^([A-Za-z]+ [A-Za-z]+): (\d{10})$", prompt, flags=re.MULTILINE)
    asked = re.search(r"([A-Z][A-Za-z]+ [A-Z][A-Za-z]+)(?::|\?\nAnswer:)$", prompt)
    assert asked is not None, prompt
    return entries, asked[1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("entries", [3, 20, 300])
def test_a_reader_finds_the_answer(variant: str, entries: int) -> None:
    for index in range(20):
        lookup = Phonebook(variant=variant).example(entries, index)
        found, asked = parsed(lookup.prompt)
        numbers = dict(found)
        assert numbers[asked] == lookup.answer and len(numbers) == entries == lookup.entries
        assert all(number[0] in "6789" for number in numbers.values())
        assert lookup.prompt.rindex(f"{asked}: {lookup.answer}\n") == lookup.place


def test_the_examples_are_two_other_entries_of_the_book() -> None:
    for index in range(50):
        book, examples, asked = Phonebook().example(5, index).prompt.split("\n\n")
        a, b = examples.split("\n")
        assert a != b and {a, b} < set(book.split("\n")) and not {a.split(":")[0], b.split(":")[0]} & {asked[:-1]}


def test_no_name_stands_twice() -> None:
    book = Phonebook().example(5000, 0).prompt.split("\n\n")[0].split("\n")
    assert len({line.split(":")[0] for line in book}) == 5000


def test_a_text_depends_on_seed_size_and_number_and_on_nothing_else() -> None:
    np.random.seed(0)
    first = [Phonebook().example(10, index) for index in (0, 1, 2)]
    np.random.seed(1)
    again = [Phonebook().example(10, index) for index in (2, 1, 0)][::-1]
    assert first == again
    others = [Phonebook(seed=1).example(10, 0), Phonebook().example(11, 0), *first]
    assert len({lookup.prompt.split("\n")[0] for lookup in others}) == 5


def test_the_answer_stands_anywhere_equally_often() -> None:
    depths = np.array([Phonebook().example(11, index).depth for index in range(1100)])
    counts = np.bincount(np.round(depths * 10).astype(int), minlength=11)
    assert len(counts) == 11
    assert ((counts - 100) ** 2 / 100).sum() < 29.6  # chi-squared, 10 degrees of freedom, p = 0.001


@pytest.mark.parametrize(("depth", "line"), [(0.0, 0), (0.5, 10), (1.0, 20)])
def test_the_answer_stands_where_it_is_asked_to(depth: float, line: int) -> None:
    lookup = Phonebook(depth=depth).example(21, 3)
    found, asked = parsed(lookup.prompt)
    assert found[line] == (asked, lookup.answer) and lookup.depth == depth


def by_pieces(text: str) -> int:
    """Tokens as a subword tokenizer might count them: words of up to four letters, single digits and marks."""
    return len(re.findall(r" ?[A-Za-z]{1,4}|\d|[^A-Za-z\d]", text))


@pytest.mark.parametrize("count", [len, by_pieces])
@pytest.mark.parametrize("variant", ["jelassi", "jrt"])
@pytest.mark.parametrize("tokens", [300, 2048, 16384])
def test_a_size_in_tokens_is_hit(count, variant: str, tokens: int) -> None:
    book = Phonebook(variant=variant)
    entries = book.entries_for(tokens, count)
    mean = np.mean([count(book.example(entries, index).prompt) for index in range(40)])
    an_entry = (mean - count(book.example(3, 0).prompt)) / (entries - 3)
    assert abs(mean - tokens) < 0.6 * an_entry + 0.005 * tokens


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Phonebook(variant="long"), "variant='long'; allowed: jelassi, question_first"),
        (lambda: Phonebook(depth=1.5), "depth=1.5; allowed: 0"),
        (lambda: Phonebook(seed=-1), "seed=-1; allowed: 0 or more"),
        (lambda: Phonebook().example(2, 0), "entries=2; allowed: 3 to 61120"),
        (lambda: Phonebook().example(10**6, 0), "entries=1000000; allowed: 3 to 61120"),
        (lambda: Phonebook().entries_for(20, len), r"length=20; allowed: at least \d+, the tokens of 3 entries"),
    ],
)
def test_an_impossible_book_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_names_are_drawn_evenly_and_never_twice() -> None:
    """All 60 sequences of three out of five, 60,000 draws: the chi-square of 59 degrees of freedom stays below 98.3."""
    draws = jax.jit(jax.vmap(lambda key: distinct(key, 3, 5)))(jax.random.split(jax.random.key(0), 60_000))
    assert (np.sort(draws, axis=1)[:, 1:] > np.sort(draws, axis=1)[:, :-1]).all()
    _, counts = np.unique(np.asarray(draws) @ np.array([25, 5, 1]), return_counts=True)
    assert len(counts) == 60 and ((counts - 1000) ** 2 / 1000).sum() < 98.3
    assert sorted(np.asarray(distinct(jax.random.key(1), 2809, 2809)).tolist()) == list(range(2809))
