"""Regular languages: the answer of a finite automaton, after a word or after each prefix (Delétang et al. 2023)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from evalkit.checks import one_of, refuse_below_1
from evalkit.tasks.base import Example, Synthetic

MODULUS = 5
"""The modulus of the cycle and of the arithmetic, as published."""
PLUS, MINUS, TIMES = range(MODULUS, MODULUS + 3)
ASKED = ("end", EVERYWHERE := "everywhere")


class Automaton(NamedTuple):
    """A finite automaton: `after[s, a]` is the state that letter a leads to from s, and the first is state 0.

    `drawn` are the letters from which places 0, 1, … of a word are drawn, periodically; a word ends after a place of
    the first kind. `answers[s]` is the answer in state s. `letters` names each letter; the next id is the question.
    """

    letters: str
    drawn: tuple[range, ...]
    after: Int[np.ndarray, "s a"]
    answers: Int[np.ndarray, " s"]


@dataclass(frozen=True, kw_only=True)
class RegularLanguage(Synthetic):
    """A random word and the question `=`; the answer, which is a token, is scored there, or after each prefix as well.

    The languages are the four regular ones of Delétang et al. 2023 (arXiv 2207.02098): `parity` (is the number of ones
    odd), `even_pairs` (do the first and the last letter differ: is the number of `01` and `10` odd), `cycle_navigation`
    (where on a circle of five places a walk of steps −1, 0 and 1 ends) and `modular_arithmetic` (the value modulo 5 of
    sums, differences and products without brackets). An expression has an odd number of tokens: at an even length, 2
    included, it is one shorter, and padding follows the question. `task=state_tracking` asks parity at every place.

    With `asked=everywhere`, the answer for each prefix that is a word is scored too, at its last letter. This form is
    ours: from single answers at the end, even an LSTM needs far more words to learn the automaton.

    Options:
      language: `parity`, `even_pairs`, `cycle_navigation` or `modular_arithmetic`.
      asked: where answers are scored: `end`, as published, or `everywhere`.
      length (tokens): the longest word of training; `train.lengths` draws shorter ones too.

    >>> task = RegularLanguage(language="modular_arithmetic", length=5)
    >>> question = np.array([1, PLUS, 2, TIMES, 3, 8])  # 1 + 2 × 3 =
    >>> task.solve(question)[0].tolist()
    [0, 0, 0, 0, 0, 2]
    """

    answer_length: ClassVar[int] = 1

    language: str = "even_pairs"
    asked: str = "end"
    length: int = 160

    def __post_init__(self) -> None:
        one_of(self, "language", tuple(LANGUAGES))
        one_of(self, "asked", ASKED)
        refuse_below_1(length=self.length)

    @property
    def scored(self) -> int | None:
        """Returns the number of scored positions: 1, or None with `asked=everywhere`."""
        return None if self.asked == EVERYWHERE else 1

    @property
    def vocab_size(self) -> int:
        """Returns the number of letters, and one for the question."""
        return self.question + 1

    @property
    def question(self) -> int:
        """Returns the id of the question, `=`."""
        return len(automaton(self.language).letters)

    @property
    def chance(self) -> float:
        """Returns the exact accuracy of always giving the most frequent answer at each length that is scored."""
        machine, longest = automaton(self.language), self.length - (self.length - 1) % self._period
        before = range(1, longest + 1, self._period) if self.asked == EVERYWHERE else ()
        asked = [_distribution(machine, length) for length in (*before, longest)]
        return float(np.mean([np.bincount(machine.answers, states).max() for states in asked]))

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        refuse_below_1(length=length)
        machine = automaton(self.language)
        kinds = [machine.drawn[place % len(machine.drawn)] for place in range(length)]
        sizes = jnp.array([len(kind) for kind in kinds])
        letters = jnp.array([kind.start for kind in kinds]) + jax.random.randint(key, (length,), 0, sizes)
        after, answers = jnp.asarray(machine.after, jnp.int32), jnp.asarray(machine.answers, jnp.int32)

        def step(state: Array, letter: Array) -> tuple[Array, Array]:
            state = after[state, letter]
            return state, answers[state]

        _, due = jax.lax.scan(step, jnp.int32(0), letters)
        tokens = jnp.append(letters, self.question)
        targets = jnp.append(due, due[-1]) if self.asked == EVERYWHERE else jnp.append(jnp.int32(0), due)
        return self.cut(Example(tokens, targets, jnp.ones((length + 1,), bool)), jnp.int32(length))

    def cut(self, example: Example, length: Int[Array, ""]) -> Example:
        """Returns the example of a shorter word, with the question after it. `example.targets` answers every prefix."""
        end = length - (length - 1) % self._period
        place = jnp.arange(example.tokens.shape[-1])
        tokens = jnp.where(place < end, example.tokens, jnp.where(place == end, self.question, 0))
        if self.asked != EVERYWHERE:
            return example._replace(tokens=tokens, mask=place == end)
        targets = jnp.where(place == end, jnp.roll(example.targets, 1), example.targets)
        words = (place < end) & (place % self._period == 0)
        return Example(tokens, targets, words | (place == end))

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        """Each language by its own rule; no automaton is run."""
        end = int(np.flatnonzero(tokens == self.question)[0])
        targets, mask = np.zeros(len(tokens), np.int32), np.zeros(len(tokens), bool)
        letters, rule = [int(token) for token in tokens[:end]], LANGUAGES[self.language].rule
        for place in range(0, end, self._period) if self.asked == EVERYWHERE else ():
            targets[place], mask[place] = rule(letters[: place + 1]), True
        targets[end], mask[end] = rule(letters), True
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns the letter of the language, or `=` for the question."""
        return "=" if token == self.question else automaton(self.language).letters[token]

    @property
    def _period(self) -> int:
        """Returns the step between possible lengths of words, which begin at one token."""
        return len(automaton(self.language).drawn)


def value_of(expression: list[int]) -> int:
    """Returns the value, modulo 5, of digits with operators between them: products first, then from the left.

    >>> value_of([0, TIMES, 1, PLUS, 4, TIMES, 3, MINUS, 2])
    0
    """
    total, product, sign = 0, expression[0], 1
    for operator, digit in zip(expression[1::2], expression[2::2], strict=True):
        if operator == TIMES:
            product *= digit
        else:
            total, product, sign = total + sign * product, digit, 1 if operator == PLUS else -1
    return (total + sign * product) % MODULUS


def _parity() -> Automaton:
    return Automaton("01", (range(2),), np.array([[0, 1], [1, 0]]), np.array([0, 1]))


def _even_pairs() -> Automaton:
    """State 1 + 2·first + last; state 0 has read nothing."""
    after = np.array([[1, 4], *([1 + 2 * first, 2 + 2 * first] for first in (0, 1) for _ in (0, 1))])
    return Automaton("01", (range(2),), after, np.array([0, 0, 1, 1, 0]))


def _cycle_navigation() -> Automaton:
    """Letters 0 to 4 are places, which occur only as answers; after them come the steps −1, 0 and 1."""
    place, step = np.arange(MODULUS)[:, None], np.array([-1, 0, 1])
    stays = np.broadcast_to(place, (MODULUS, MODULUS))
    after = np.concatenate([stays, (place + step) % MODULUS], axis=1)
    return Automaton("01234-.+", (range(MODULUS, MODULUS + 3),), after, np.arange(MODULUS))


def _modular_arithmetic() -> Automaton:
    """A state is a sum, the signed product still to be added to it, and whether the next token is a factor of that."""
    states = [(total, product) for total in range(MODULUS) for product in range(MODULUS)]
    number = {state: index for index, state in enumerate(states)}
    # The second half of the states waits for a digit; before any, the product is 1.
    waits = len(states)
    after = np.zeros((2 * waits, MODULUS + 3), np.int64)
    for (total, product), state in number.items():
        for digit in range(MODULUS):
            after[state, digit] = state  # never drawn
            after[waits + state, digit] = number[total, product * digit % MODULUS]
        added = (total + product) % MODULUS
        after[state, PLUS], after[state, MINUS] = waits + number[added, 1], waits + number[added, MODULUS - 1]
        after[state, TIMES] = waits + state
        after[waits + state, MODULUS:] = waits + state  # never drawn
    answers = np.tile([sum(state) % MODULUS for state in states], 2)
    # State 0 must be the first: nothing is summed up, and the product 1 waits for its first digit.
    order = np.arange(2 * waits)
    first = waits + number[0, 1]
    order[[0, first]] = order[[first, 0]]
    return Automaton("01234+-×", (range(MODULUS), range(MODULUS, MODULUS + 3)), order[after][order], answers[order])


class Language(NamedTuple):
    """The automaton that a language is sampled by, and a separate rule that gives the right answer."""

    machine: Callable[[], Automaton]
    rule: Callable[[list[int]], int]


LANGUAGES: Mapping[str, Language] = {
    "parity": Language(_parity, lambda word: sum(word) % 2),
    "even_pairs": Language(_even_pairs, lambda word: int(word[0] != word[-1])),
    "cycle_navigation": Language(_cycle_navigation, lambda word: sum(step - MINUS for step in word) % MODULUS),
    "modular_arithmetic": Language(_modular_arithmetic, value_of),
}


@cache
def automaton(language: str) -> Automaton:
    """Returns the automaton of a language."""
    return LANGUAGES[language].machine()


def _distribution(machine: Automaton, length: int) -> Float[np.ndarray, " s"]:
    """Returns the probability of each state after a random word of this length."""
    states = np.eye(len(machine.after))[0]
    for place in range(length):
        kind = machine.drawn[place % len(machine.drawn)]
        moved = machine.after[:, kind.start : kind.stop]
        states = np.bincount(moved.reshape(-1), np.repeat(states / len(kind), len(kind)), len(states))
    return states
