"""How the next token is chosen: the likeliest, or drawn at a temperature, from the k likeliest or from a nucleus."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from evalkit.numerics import GUMBEL, random_key

COLDEST = 1e-3
"""Logits divided by less may leave what float32 holds, and no token but the likeliest would be drawn."""


@dataclass(frozen=True)
class Sampler:
    """Chooses a token for each row from its logits.

    `temperature` 0 takes the likeliest token. Above it, tokens are drawn from softmax(logits / temperature), with
    `top_k` from the k likeliest alone. `top_p` then keeps the fewest likeliest tokens whose probabilities sum to it
    (nucleus sampling, Holtzman et al. 2019). Tokens as likely as the last one that is kept are kept too.
    Raises ValueError for an invalid value, and for `top_k` or `top_p` where nothing is drawn.

    >>> logits = jnp.log(jnp.array([[0.1, 0.6, 0.3]]))
    >>> Sampler().choose(logits, rows=jnp.array([0]), seed=jnp.array(0), step=jnp.array(0)).tolist()
    [1]
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            raise ValueError(f"temperature={self.temperature}; allowed: 0 (the likeliest token), or {COLDEST} or more")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}; allowed: 1 or more, or null for all tokens")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}; allowed: above 0, and 1 (all tokens) at most")
        if not self.temperature and (self.top_k is not None or self.top_p < 1):
            which = f"top_k={self.top_k}" if self.top_k is not None else f"top_p={self.top_p}"
            raise ValueError(f"{which} with temperature=0, which takes the likeliest token; give temperature=1 to draw")

    def choose(
        self, logits: Float[Array, "b v"], rows: Int[Array, " b"], seed: Int[Array, ""], step: Int[Array, ""]
    ) -> Int[Array, " b"]:
        """Returns the token of each row. A draw depends on the seed, the number of its row and the step alone."""
        if self.temperature:
            logits = jnp.where(self._kept(logits / self.temperature), logits / self.temperature, -jnp.inf)
            key = random_key(seed)
            keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.fold_in(key, row), step))(rows)
            logits = logits + jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[1:], mode=GUMBEL))(keys)
        return logits.argmax(axis=-1).astype(jnp.int32)

    def _kept(self, logits: Float[Array, "b v"]) -> Bool[Array, "b v"]:
        kept = jnp.ones(logits.shape, bool)
        if self.top_k is not None and self.top_k < logits.shape[1]:
            kept = logits >= jax.lax.top_k(logits, self.top_k)[0][:, -1:]
        if self.top_p < 1:
            # Of what top_k left: a token stays if those that are likelier do not make up the sum by themselves.
            left = jnp.where(kept, logits, -jnp.inf)
            sorted_logits = -jnp.sort(-left, axis=1)
            weights = jax.nn.softmax(sorted_logits, axis=1)
            needed = jnp.cumsum(weights, axis=1) - weights < self.top_p
            needed = needed.at[:, 0].set(True)  # a `top_p` too small for float32 leaves the likeliest token
            kept &= left >= jnp.where(needed, sorted_logits, jnp.inf).min(axis=1, keepdims=True)
        return kept


GREEDY = Sampler()
