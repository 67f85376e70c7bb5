"""Needles in bytes: the text of `tasks/needle.py` for small models that are trained on it."""

import re
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, Key

from evalkit.checks import at_least
from evalkit.tasks.base import Example, Synthetic, distinct
from evalkit.tasks.needle import CONSONANTS, INTRO, NOISE, QUESTION, SENTENCE, SYLLABLES, VOWELS, WORDS

KIND = "number"
BEGIN = 256
"""The token that begins a text, as that of `tasks.text.tokenizers.Bytes`."""
KEY = "k" * 2 * SYLLABLES
"""What stands in a sentence for its key, of the same length."""


@dataclass(frozen=True, kw_only=True)
class NeedleBytes(Synthetic):
    """Sentences that give secret numbers, hidden in repeated noise, and the question for one of the numbers.

    It is the text that `task=needle` gives to checkpoints, byte by byte, after the token that begins a text: the same
    introduction, sentences, noise and question. The last sentence of noise is cut where the context is full. Each
    sentence with a number stands before a sentence of noise, at a place drawn uniformly.

    `length` counts everything up to the question's last letter. The answer, a space, the digits and a full stop, is
    teacher-forced: `tokens` goes on with all of it but the full stop. All of it is scored: a model that answers in
    text must generate the space, and must know where a number ends.

    Options:
      length (bytes): a training sequence up to its answer.
      keys (sentences): sentences with a number, each of another key; one of the keys is asked for.
      digits (bytes): the length of a number.

    >>> task = NeedleBytes(length=256)
    >>> example = task.sample(jax.random.key(0), 256)
    >>> len(example.tokens), int(example.mask.sum())
    (264, 9)
    """

    vocab_size: ClassVar[int] = 258
    length: int = 512
    keys: int = 1
    digits: int = 7

    def __post_init__(self) -> None:
        at_least(self, 1, "keys", "digits")
        self._noise(self.length)

    @property
    def answer_length(self) -> int:
        """Returns the number of tokens after the context: the space and the digits."""
        return 1 + self.digits

    @property
    def scored(self) -> int:
        """Returns the number of scored positions: the space, the digits and the full stop."""
        return 2 + self.digits

    @property
    def chance(self) -> float:
        """Returns the accuracy of one who knows the form and guesses each digit."""
        return (2 + self.digits / 10) / (2 + self.digits)

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        noise = self._noise(length)
        for_words, for_numbers, for_places = jax.random.split(key, 3)
        words = _words(distinct(for_words, self.keys, WORDS))
        numbers = jax.random.randint(for_numbers, (self.keys, self.digits), 0, 10) + ord("0")
        places = jnp.sort(
            jnp.asarray(_places(noise))[jax.random.randint(for_places, (self.keys,), 0, _places(noise).size)]
        )
        sentence = _bytes(self._sentence)
        width = len(sentence)
        starts = places + width * jnp.arange(self.keys)
        at = jnp.arange(noise + self.keys * width)
        before = (at[:, None] >= starts[None] + width).sum(axis=1)
        body = jnp.asarray(_bytes(NOISE))[(at - before * width) % len(NOISE)]
        for word, number, start in zip(words, numbers, starts, strict=True):
            filled = jnp.asarray(sentence).at[self._sentence.index(KEY) + jnp.arange(len(KEY))].set(word)
            filled = filled.at[self._sentence.index("0") + jnp.arange(self.digits)].set(number)
            body = jax.lax.dynamic_update_slice_in_dim(body, filled, start, axis=0)
        question = QUESTION.format(kind=KIND, key=KEY)
        # Word i is at the i-th place in order, so the queried word is drawn: it may then be at any place.
        asked = jax.random.randint(jax.random.fold_in(for_places, 1), (), 0, self.keys)
        asking = jnp.asarray(_bytes(question)).at[question.index(KEY) + jnp.arange(len(KEY))].set(words[asked])
        answer = jnp.concatenate([jnp.full((1,), ord(" ")), numbers[asked], jnp.full((1,), ord("."))])
        tokens = jnp.concatenate(
            [jnp.full((1,), BEGIN), jnp.asarray(_bytes(INTRO.format(kind=KIND))), body, asking, answer[:-1]]
        )
        mask = jnp.arange(len(tokens)) >= length - 1
        return Example(tokens, jnp.zeros_like(tokens).at[length - 1 :].set(answer), mask)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        text = _text(tokens)
        mask = np.arange(len(tokens)) >= len(tokens) - self.scored
        asked = re.findall(_pattern(QUESTION, "key").strip(), text)[-1]
        ((number,),) = {
            (found[1],) for found in re.findall(_pattern(SENTENCE, "key", "value"), text) if found[0] == asked
        }
        targets = np.zeros(len(tokens), np.int32)
        targets[mask] = [ord(character) for character in f" {number}."]
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns a byte as a character, ␣ for a space, ⏎ for a new line, ▸ and ■ for the ends of a text."""
        return {ord(" "): "␣", ord("\n"): "⏎", BEGIN: "▸", BEGIN + 1: "■"}.get(token, chr(token))

    @property
    def _sentence(self) -> str:
        return SENTENCE.format(kind=KIND, key=KEY, value="0" * self.digits) + " "

    def _noise(self, length: int) -> int:
        """Returns the bytes of noise in a context of `length`; raises ValueError where there is no room for any."""
        fixed = 1 + len(INTRO.format(kind=KIND)) + len(QUESTION.format(kind=KIND, key=KEY))
        noise = length - fixed - self.keys * len(self._sentence)
        if noise < 1:
            raise ValueError(
                f"length={length} is too short for keys={self.keys} and digits={self.digits}; "
                f"use a length of at least {length - noise + 1}"
            )
        return noise


def _text(tokens: Int[np.ndarray, " t"]) -> str:
    return bytes(token for token in tokens.tolist() if token < BEGIN).decode("ascii")


def _bytes(text: str) -> Int[np.ndarray, " t"]:
    return np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int32)


def _places(noise: int) -> Int[np.ndarray, " n"]:
    """Returns where sentences begin in `noise` bytes of noise."""
    begins = [0, *(found.end() for found in re.finditer(r"\. ", NOISE))]
    return np.asarray([at for at in range(noise) if at % len(NOISE) in begins])


def _words(numbers: Int[Array, " n"]) -> Int[Array, "n t"]:
    """The words with these numbers, each of a consonant and a vowel by turns."""
    syllables = len(CONSONANTS) * len(VOWELS)
    digits = numbers[:, None] // syllables ** jnp.arange(SYLLABLES)[None] % syllables
    letters = jnp.stack(
        [jnp.asarray(_bytes(CONSONANTS))[digits // len(VOWELS)], jnp.asarray(_bytes(VOWELS))[digits % len(VOWELS)]],
        axis=-1,
    )
    return letters.reshape(len(numbers), -1)


def _pattern(text: str, *groups: str) -> str:
    """A text as a regular expression, with a group of letters and digits for each name."""
    words = {name: r"(\w+)" if name in groups else r"\w+" for name in ("key", "value")}
    return re.escape(text).replace(r"\{", "{").replace(r"\}", "}").format(kind=KIND, **words)
