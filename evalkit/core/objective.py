"""Loss and accuracy as one number per sequence: the mean over its scored positions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from evalkit.tasks import Example

METRICS = ("loss", "accuracy", "exact_match")


class Tally(NamedTuple):
    """Sums over the scored positions of each sequence `[b]`; the tallies of consecutive chunks can be added."""

    loss: Float[Array, " b"]
    correct: Float[Array, " b"]
    scored: Float[Array, " b"]

    @classmethod
    def zero(cls, batch: int) -> "Tally":
        """Returns the tally of nothing."""
        return cls(*(jnp.zeros(batch) for _ in cls._fields))

    def __add__(self, other: "Tally") -> "Tally":  # type: ignore[override]
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def scores(self) -> dict[str, Float[Array | np.ndarray, " b"]]:
        """Returns mean loss (nats), mean accuracy and whole-answer exact match of each sequence.

        A sequence without a scored position, such as a document of one token, has 0 of each.
        """
        scored = self.scored.clip(min=1)
        exact = ((self.correct == self.scored) & (self.scored > 0)).astype(np.float32)
        return dict(zip(METRICS, (self.loss / scored, self.correct / scored, exact), strict=True))


def scored_only(example: Example, scored: int | None) -> tuple[Int[Array, "b n"] | None, Example]:
    """Returns the indices of the `scored` positions of each row `[b, t]`, and the example at these positions alone.

    `scored` is None for a task that scores all positions or a varying number: then the indices are None and the
    example is whole.
    """
    if scored is None or scored >= example.tokens.shape[1]:
        return None, example
    # A fixed number of positions has a static shape, so the last MLP and the head are computed at these alone.
    at = jnp.sort(jnp.argsort(~example.mask, axis=1, stable=True)[:, :scored], axis=1)
    there = [jnp.take_along_axis(field, at, axis=1) for field in example[:3]]
    return at, Example(*there)


def tally(logits: Float[Array, "b t v"], example: Example, smoothing: float = 0.0) -> Tally:
    """Returns the sums of cross-entropy and of hits over the scored positions, in float32.

    With `smoothing`, that share of a target is spread evenly over all tokens (Szegedy et al. 2016, sec. 7).
    """
    mask = example.mask.astype(jnp.float32)
    right = jax.nn.one_hot(example.targets, logits.shape[-1], dtype=jnp.float32)
    if smoothing:
        right = optax.smooth_labels(right, smoothing)
    loss = jax.nn.logsumexp(logits, axis=-1) - (logits * right).sum(axis=-1)
    correct = (logits.argmax(axis=-1) == example.targets).astype(jnp.float32)
    return Tally((loss * mask).sum(axis=1), (correct * mask).sum(axis=1), mask.sum(axis=1))
