"""Induction heads: recall the token that followed the special token (De et al. 2024, sec. 6.2)."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, Key

from evalkit.checks import at_least, one_of
from evalkit.tasks.base import Example, Synthetic, letter

TRIGGERS = ("uniform", "prefix", "fixed")
LOSSES = ("answer", "all")
LABELS = ("right", "shuffled")


@dataclass(frozen=True, kw_only=True)
class InductionHeads(Synthetic):
    """Random tokens with a special token at a random place and again at the end; recall the token after the first one.

    The vocabulary counts the special token, whose id is `vocab_size - 1`; the other tokens are ordinary. With length 8,
    ordinary tokens a to e and special token S, an example is `b S d a c e a S`. The answer at the last position is `d`,
    the token after the first S.

    With `loss=all` the answer counts little among `length` random tokens. With `labels=shuffled`, a control, nothing
    can be learned; `solve` still returns the right answer.

    Options (the defaults are those of the paper, sec. 6.2, as far as it says):
      vocab_size (token ids): the size of the vocabulary, the special token included.
      length (tokens): the length of a training sequence.
      trigger: where the special token stands: `uniform` anywhere, `prefix` in the first half, `fixed` at `fixed_place`.
      fixed_place (position): where the special token stands with `trigger=fixed`, a weaker test.
      triggers (tokens): special tokens before the query, all followed by the same answer.
      loss: what is scored in training: `answer`, the last position alone, or `all`, the next token at every position.
        Held-out sequences always score the answer alone.
      labels: `right`, or `shuffled` for a random target at the end.

    >>> task = InductionHeads(length=8)
    >>> example = task.sample(jax.random.key(0), 8)
    >>> int(example.tokens[-1]), example.mask.tolist().index(True)
    (15, 7)
    """

    vocab_size: int = 16
    length: int = 256
    trigger: str = "uniform"
    fixed_place: int = 5
    triggers: int = 1
    loss: str = "answer"
    labels: str = "right"

    def __post_init__(self) -> None:
        if self.vocab_size < 3:
            raise ValueError(
                f"vocab_size={self.vocab_size}; allowed: at least 3 (two ordinary tokens and the special one)"
            )
        one_of(self, "trigger", TRIGGERS)
        one_of(self, "loss", LOSSES)
        one_of(self, "labels", LABELS)
        at_least(self, 1, "triggers")
        if self.trigger == "fixed" and self.triggers != 1:
            raise ValueError(f"trigger=fixed with triggers={self.triggers}; allowed: triggers=1, or trigger=uniform")
        at_least(self, 0, "fixed_place")
        usual = type(self).fixed_place
        if self.trigger != "fixed" and self.fixed_place != usual:
            raise ValueError(f"fixed_place={self.fixed_place} with trigger={self.trigger}; give trigger=fixed too")
        self._check_length(self.length)

    @property
    def judged(self) -> "InductionHeads":
        """Returns the task of held-out sequences, in which the answer alone is scored."""
        return self if self.loss == "answer" else replace(self, loss="answer")

    @property
    def scored(self) -> int | None:
        """Returns the number of scored positions: 1, or None where all are scored."""
        return 1 if self.loss == "answer" else None

    @property
    def chance(self) -> float:
        """Returns the accuracy of guessing among the ordinary tokens."""
        return 1.0 / (self.vocab_size - 1)

    @property
    def special(self) -> int:
        """Returns the id of the special token, the query; it equals the number of ordinary tokens, the answers."""
        return self.vocab_size - 1

    query = answers = special

    def sample(self, key: Key[Array, ""], length: int) -> Example:
        self._check_length(length)
        for_tokens, places = jax.random.split(key)
        tokens = self.ordinary(for_tokens, length)
        where = self._places(places, length)
        answer = tokens[where[0] + 1]
        tokens = tokens.at[where + 1].set(answer).at[where].set(self.special).at[length - 1].set(self.special)
        if self.labels == "shuffled":
            answer = jax.random.randint(jax.random.fold_in(key, 2), (), 0, self.special)
        targets = jnp.roll(tokens, -1).at[length - 1].set(answer)
        if self.loss == "all":
            return Example(tokens, targets, jnp.ones((length,), bool))
        last = jnp.arange(length) == length - 1
        return Example(tokens, jnp.where(last, targets, 0), last)

    def ordinary(self, key: Key[Array, ""], length: int) -> Int[Array, " t"]:
        """Draws `length` ordinary tokens."""
        return jax.random.randint(key, (length,), 0, self.special)

    def plant(
        self, key: Key[Array, ""], length: int, place: Int[ArrayLike, ""], answer: Int[ArrayLike, ""]
    ) -> Int[Array, " t"]:
        """Draws ordinary tokens, with the special token at `place` and `answer` after it, and no query at the end."""
        return self.ordinary(key, length).at[place + 1].set(answer).at[place].set(self.special)

    def solve(self, tokens: Int[np.ndarray, " t"]) -> tuple[np.ndarray, np.ndarray]:
        length = len(tokens)
        first = int(np.flatnonzero(tokens[:-1] == self.special)[0])
        targets = np.zeros(length, np.int32)
        mask = np.zeros(length, bool)
        if self.loss == "all":
            targets[:-1] = tokens[1:]
            mask[:] = True
        targets[-1], mask[-1] = tokens[first + 1], True
        return targets, mask

    def symbol(self, token: int) -> str:
        """Returns a letter for an ordinary token (numbers past z), and a star for the special one."""
        return "★" if token == self.special else letter(token)

    def _places(self, key: Key[Array, ""], length: int) -> Int[Array, " triggers"]:
        """Draws places of the special token, at least two apart, so that none overwrites the answer of another."""
        if self.trigger == "fixed":
            return jnp.array([self.fixed_place])
        places = self._last_place(length) + 1
        if self.triggers == 1:
            return jax.random.randint(key, (1,), 0, places)
        # Choosing n places at least two apart is choosing n among n - 1 fewer places, and adding 0 to n - 1 in order.
        chosen = jax.random.permutation(key, places - self.triggers + 1)[: self.triggers]
        return jnp.sort(chosen) + jnp.arange(self.triggers)

    def _last_place(self, length: int) -> int:
        """Returns the last place of the special token: `length - 3`, so that the answer is not the query."""
        return (length // 2 if self.trigger == "prefix" else length) - 3

    def _check_length(self, length: int) -> None:
        needed = 2 * self.triggers - 2 if self.trigger != "fixed" else self.fixed_place
        if self._last_place(length) < needed:
            raise ValueError(
                f"length={length} is too short for trigger={self.trigger}, triggers={self.triggers}; "
                f"use a length of at least {(needed + 3) * (2 if self.trigger == 'prefix' else 1)}"
            )
