"""Residual blocks over any mixers, and the language model around them (De et al. 2024, sec. 2.1)."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from evalkit.models.layers.mixer import Cache, Decaying, Mixer
from evalkit.models.layers.modules import GatedMLP, NoDecay, RMSNorm
from evalkit.models.layers.products import product_transposed
from evalkit.models.layers.shapes import Activations, Logits, Places, Positions, States, Tokens

# Up to this vocabulary a product with one-hot rows beats a gather, whose gradient is a slow scatter-add.
ONE_HOT_UP_TO = 64


class ResidualBlock(nnx.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`; with `mlp_width` 0 the mixer alone."""

    def __init__(
        self, width: int, mixer: Callable[..., Mixer], mlp_width: int, *, rngs: nnx.Rngs, mlp_bias: bool = False
    ):
        self.mixer_norm = RMSNorm(width, rngs=rngs)
        self.mixer = mixer(width=width, rngs=rngs)
        self.mlp_norm = RMSNorm(width, rngs=rngs) if mlp_width else None
        self.mlp = GatedMLP(width, mlp_width, bias=mlp_bias, rngs=rngs) if mlp_width else None

    def __call__(
        self, x: Activations, positions: Positions | None, cache: Cache | None, at: Places | None
    ) -> tuple[Float[jax.Array, "b _ d"], Cache | None]:
        """One block, the result only `at` those positions if they are given; the cache is the mixer's."""
        mixed, cache = self.mixer(self.mixer_norm(x), positions, cache)
        x = x + mixed
        if at is not None:
            x = jnp.take_along_axis(x, at[..., None], axis=1)
        if self.mlp is None or self.mlp_norm is None:
            return x, cache
        return x + self.mlp(self.mlp_norm(x)), cache


class Embedding(nnx.Module):
    """Token vectors, scaled on the way in; also the rows of the head (tied), there unscaled.

    `scale` None is `sqrt(width)`. `soft_cap` c bends logits to `c · tanh(logits / c)`; None leaves them as they are.
    """

    def __init__(
        self, vocab_size: int, width: int, *, rngs: nnx.Rngs, scale: float | None = None, soft_cap: float | None = None
    ):
        self.table = NoDecay(jax.random.normal(rngs.params(), (vocab_size, width)) * width**-0.5)
        self.scale = width**0.5 if scale is None else scale
        self.soft_cap = soft_cap

    def __call__(self, tokens: Tokens) -> Activations:
        """The vectors of `tokens`."""
        table = self.table[...]
        if table.shape[0] > ONE_HOT_UP_TO:
            return table[tokens] * self.scale
        rows = jax.nn.one_hot(tokens.reshape(-1), table.shape[0], dtype=table.dtype) @ (table * self.scale)
        return rows.reshape(*tokens.shape, table.shape[1])

    def logits(self, x: Activations) -> Logits:
        """`x @ tableᵀ`, capped; float32, of products in the table's own dtype (a copy of it would be the largest)."""
        table = self.table[...]
        rows = x.reshape(-1, x.shape[-1]).astype(table.dtype)
        logits = product_transposed(rows, table, jnp.float32).reshape(*x.shape[:-1], table.shape[0])
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)


class LanguageModel(nnx.Module):
    """Embedding, one residual block an entry of `pattern`, a last norm, and a head tied to the embedding."""

    def __init__(
        self,
        *,
        vocab_size: int,
        width: int,
        pattern: Sequence[str],
        mixers: Mapping[str, Callable[..., Mixer]],
        mlp_width: int,
        mlp_bias: bool,
        embedding_scale: float | None,
        logits_soft_cap: float | None,
        dtype: str,
        rngs: nnx.Rngs,
    ):
        self.dtype = dtype
        self.embedding = Embedding(vocab_size, width, scale=embedding_scale, soft_cap=logits_soft_cap, rngs=rngs)
        self.blocks = nnx.List(
            [ResidualBlock(width, mixers[name], mlp_width, mlp_bias=mlp_bias, rngs=rngs) for name in pattern]
        )
        self.norm = RMSNorm(width, rngs=rngs)

    def __call__(
        self, tokens: Tokens, positions: Positions | None, cache: tuple[Cache, ...] | None, at: Places | None
    ) -> tuple[Float[jax.Array, "b _ v"], tuple[Cache, ...] | None]:
        """Logits at every position, or only `at` those given, and the new cache if one is given."""
        x = self.embedding(tokens).astype(self.dtype)
        caches = []
        last = len(self.blocks) - 1
        for index, before in enumerate(cache or (None,) * len(self.blocks)):
            x, after = self.blocks[index](x, positions, before, at if index == last else None)
            caches.append(after)
        return self.embedding.logits(self.norm(x)), None if cache is None else tuple(caches)

    def decays(self, tokens: Tokens) -> dict[int, tuple[States, States]]:
        """What each block's mixer that is `Decaying` forgets and holds, by the block's number."""
        x, found = self.embedding(tokens).astype(self.dtype), {}
        for number, block in enumerate(self.blocks):
            if isinstance(block.mixer, Decaying):
                found[number] = block.mixer.decays(block.mixer_norm(x))
            x, _ = block(x, None, None, None)
        return found

    def init_cache(self, batch: int, length: int) -> tuple[Cache, ...]:
        """One empty cache a block."""
        return tuple(block.mixer.init_cache(batch, length) for block in self.blocks)

    @property
    def windows(self) -> list[int]:
        """The windows of the mixers that have one."""
        return [block.mixer.window for block in self.blocks if block.mixer.window is not None]
