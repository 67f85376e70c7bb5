"""The language model: residual blocks around any mixers, an embedding and a tied head (De et al. 2024, sec. 2.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from evalkit.models.layers.mixer import (
    Activations,
    Cache,
    Decaying,
    Logits,
    Mixer,
    Places,
    Positions,
    Split,
    States,
    Tokens,
    Values,
    ValueSharing,
    built,
    flops_of,
)
from evalkit.models.layers.modules import GatedMLP, NoDecay, RMSNorm, product_transposed
from evalkit.models.layers.shares import SUM, axes_of, shared, summed

# Up to this vocabulary a product with one-hot rows is faster than a gather, whose gradient is a slow scatter-add.
ONE_HOT_UP_TO = 64


class ResidualBlock(nnx.Module):
    """A residual block: `x + mixer(norm(x))`, then `x + mlp(norm(x))`; with `mlp_width` 0 there is no MLP."""

    def __init__(
        self, width: int, mixer: Callable[..., Mixer], mlp_width: int, *, rngs: nnx.Rngs, mlp_bias: bool = False
    ):
        self.mixer_norm = RMSNorm(width, rngs=rngs)
        self.mixer = built(mixer, width=width, rngs=rngs)
        self.mlp_norm = RMSNorm(width, rngs=rngs) if mlp_width else None
        self.mlp = GatedMLP(width, mlp_width, bias=mlp_bias, rngs=rngs) if mlp_width else None

    def flops(self, length: int) -> int:
        """See `Counted`: of norms, mixer and MLP, and of the sums with the residual stream."""
        width = self.mixer_norm.scale.shape[0]
        total = self.mixer_norm.flops(length) + flops_of(self.mixer, width, length) + length * width
        if self.mlp is None or self.mlp_norm is None:
            return total
        return total + self.mlp_norm.flops(length) + self.mlp.flops(length) + length * width

    def __call__(
        self,
        x: Activations,
        positions: Positions | None,
        cache: Cache | None,
        at: Places | None,
        values: Values | None = None,
        axis: str | None = None,
    ) -> tuple[Float[jax.Array, "b _ d"], Cache | None, Values | None]:
        """Applies the block; with `at`, the result has those positions only. The cache is the mixer's.

        `values` come from the last block below with the same class of mixer; the third result is those for the blocks
        above, None if the mixer shares none (`ValueSharing`). `axis` is the mesh axis of the devices that share the
        block, as in `layers.shares`.
        """
        mixed, cache, values = self.mixed(shared(self.mixer_norm(x), axis), positions, cache, values)
        if (mixed.shape, mixed.dtype) != (x.shape, x.dtype):
            raise ValueError(
                f"{type(self.mixer).__name__} gives {mixed.dtype} {mixed.shape}; it is added to what it was given, so "
                f"give {x.dtype} {x.shape}"
            )
        x = x + summed(mixed, axis)
        if at is not None:  # before the MLP, so that it is computed at these positions only
            x = jnp.take_along_axis(x, at[..., None], axis=1)
        if self.mlp is None or self.mlp_norm is None:
            return x, cache, values
        return x + summed(self.mlp(shared(self.mlp_norm(x), axis)), axis), cache, values

    def mixed(
        self, x: Activations, positions: Positions | None, cache: Cache | None, values: Values | None
    ) -> tuple[Float[jax.Array, "..."], Cache | None, Values | None]:
        """Returns the mixer's output for a normed `x`, its cache, and the values for the blocks above."""
        if isinstance(self.mixer, ValueSharing):
            return self.mixer.with_values(x, positions, cache, values)
        return *self.mixer(x, positions, cache), None


class SharedValues:
    """The values that blocks have handed on in one pass, by the class of their mixer (`ValueSharing`)."""

    def __init__(self) -> None:
        self._by_mixer: dict[type, Values] = {}

    def of(self, mixer: Mixer) -> Values | None:
        """Returns the values of the last block with this class of mixer, None for the first one."""
        return self._by_mixer.get(type(mixer))

    def give(self, mixer: Mixer, values: Values | None) -> None:
        """Keeps the values of a block for later blocks of its class; None, of a mixer that shares none, is ignored."""
        if values is not None:
            self._by_mixer[type(mixer)] = values


class Embedding(nnx.Module):
    """A table of token vectors, also used as the head (tied).

    Vectors are multiplied by `scale` on the way in only; None means `sqrt(width)`. With `soft_cap` c, logits become
    `c · tanh(logits / c)`; None leaves them as they are.
    """

    def __init__(
        self, vocab_size: int, width: int, *, rngs: nnx.Rngs, scale: float | None = None, soft_cap: float | None = None
    ):
        self.table = NoDecay(jax.random.normal(rngs.params(), (vocab_size, width)) * width**-0.5)
        self.scale = width**0.5 if scale is None else scale
        self.soft_cap = soft_cap

    def flops(self, length: int) -> int:
        """See `Counted`: scaling the vectors, and the head. A lookup counts as 0, even if done by a product."""
        vocab_size, width = self.table.shape
        return length * (width + vocab_size * (2 * width + 2 * (self.soft_cap is not None)))

    def __call__(self, tokens: Tokens) -> Activations:
        """Returns the vectors of `tokens`."""
        table = self.table[...]
        if table.shape[0] > ONE_HOT_UP_TO:
            return table[tokens] * self.scale
        rows = jax.nn.one_hot(tokens.reshape(-1), table.shape[0], dtype=table.dtype) @ (table * self.scale)
        return rows.reshape(*tokens.shape, table.shape[1])

    def logits(self, x: Activations) -> Logits:
        """Returns `x @ tableᵀ` in float32, with the soft cap."""
        table = self.table[...]
        # Products in the table's dtype: a float32 copy of the table would be the largest array of all.
        rows = x.reshape(-1, x.shape[-1]).astype(table.dtype)
        logits = product_transposed(rows, table, jnp.float32).reshape(*x.shape[:-1], table.shape[0])
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)


class LanguageModel(nnx.Module):
    """An embedding, one residual block for each entry of `pattern`, a last norm, and a head tied to the embedding.

    With `remat`, the backward pass computes each block again instead of keeping its activations.
    """

    axis: str | None = None
    """The mesh axis of the devices that share every block, as in `layers.shares`; None: one device has all."""

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
        remat: bool,
        rngs: nnx.Rngs,
    ):
        self.dtype, self.remat = dtype, remat
        self.embedding = Embedding(vocab_size, width, scale=embedding_scale, soft_cap=logits_soft_cap, rngs=rngs)
        self.blocks = nnx.List(
            [ResidualBlock(width, mixers[name], mlp_width, mlp_bias=mlp_bias, rngs=rngs) for name in pattern]
        )
        self.norm = RMSNorm(width, rngs=rngs)
        _refuse_unlike_values([block.mixer for block in self.blocks])

    def __call__(
        self, tokens: Tokens, positions: Positions | None, cache: tuple[Cache, ...] | None, at: Places | None
    ) -> tuple[Float[jax.Array, "b _ v"], tuple[Cache, ...] | None]:
        """Returns the logits at every position, or at the positions `at`, and the new cache if a cache is given."""
        x = self.embedding(tokens).astype(self.dtype)
        caches, handed = [], SharedValues()
        last = len(self.blocks) - 1
        for index, before in enumerate(cache or (None,) * len(self.blocks)):
            block = partial(self.blocks[index], axis=self.axis)
            if self.remat:
                block = jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names(SUM))
            mixer = self.blocks[index].mixer
            x, after, values = block(x, positions, before, at if index == last else None, handed.of(mixer))
            handed.give(mixer, values)
            caches.append(after)
        return self.embedding.logits(self.norm(x)), None if cache is None else tuple(caches)

    def outputs(self, tokens: Tokens, positions: Positions | None) -> Iterator[tuple[str, jax.Array]]:
        """Yields what each part gives, in order, under its name: to find where a value went wrong."""
        x, handed = self.embedding(tokens).astype(self.dtype), SharedValues()
        yield "embedding", x
        for index, block in enumerate(self.blocks):
            values = handed.of(block.mixer)
            yield f"blocks.{index}.mixer", block.mixed(block.mixer_norm(x), positions, None, values)[0]
            x, _, values = block(x, positions, None, None, values)
            handed.give(block.mixer, values)
            yield f"blocks.{index}", x
        yield "the logits", self.embedding.logits(self.norm(x))

    def decays(self, tokens: Tokens) -> dict[int, tuple[States, States]]:
        """Returns the decays and states of each block whose mixer is `Decaying`, by the block's index."""
        x, handed, by_block = self.embedding(tokens).astype(self.dtype), SharedValues(), {}
        for number, block in enumerate(self.blocks):
            if isinstance(block.mixer, Decaying):
                by_block[number] = block.mixer.decays(block.mixer_norm(x))
            x, _, values = block(x, None, None, None, handed.of(block.mixer))
            handed.give(block.mixer, values)
        return by_block

    def check_split(self, steps: int) -> None:
        """Raises ValueError for a mixer that cannot work where time is split, `steps` tokens on each device."""
        for block in self.blocks:
            if not isinstance(block.mixer, Split):
                raise ValueError(f"{type(block.mixer).__name__} cannot have its time split over devices")
            block.mixer.check_split(steps)

    def division(self, devices: int) -> dict[str, int | str]:
        """Returns the partition rule of each parameter that `devices` share, by its dotted name; see `axes_of`."""
        rules: dict[str, int | str] = {}
        for number, block in enumerate(self.blocks):
            for name, part in (("mixer", block.mixer), ("mlp", block.mlp)):
                rules |= {} if part is None else axes_of(part, f"blocks.{number}.{name}", devices)
        return rules

    def flops(self, length: int) -> int:
        """See `Counted`: the embedding and the head, every block, and the last norm."""
        blocks = sum(block.flops(length) for block in self.blocks)
        return self.embedding.flops(length) + blocks + self.norm.flops(length)

    def init_cache(self, batch: int, length: int) -> tuple[Cache, ...]:
        """Returns an empty cache for each block."""
        return tuple(block.mixer.init_cache(batch, length) for block in self.blocks)

    @property
    def windows(self) -> list[int]:
        """Returns the windows of the mixers that have one."""
        return [block.mixer.window for block in self.blocks if block.mixer.window is not None]


def _refuse_unlike_values(mixers: Sequence[Mixer]) -> None:
    """Raises ValueError for two mixers of one class whose values have different widths."""
    widths: dict[type, int] = {}
    for mixer in mixers:
        if isinstance(mixer, ValueSharing):
            first = widths.setdefault(type(mixer), mixer.value_width)
            if mixer.value_width != first:
                raise ValueError(
                    f"values of the first {type(mixer).__name__} have {first} channels, and those of a later one "
                    f"{mixer.value_width}; give all of them the same heads and head_dim"
                )
