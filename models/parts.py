"""Takes a model apart into pieces whose times a benchmark adds up."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from evalkit.kernels import linear_scan
from evalkit.models.layers.mixer import Mixer
from evalkit.models.layers.modules import CausalConv1D, gelu_times, side_by_side
from evalkit.models.lm import LanguageModel
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.numerics import random_key


class Part(NamedTuple):
    """One kind of piece, which occurs `times` times in the model.

    `function(*arguments)` runs it; the first argument is its parameters, the others are arrays `[b, ...]`.
    """

    name: str
    times: int
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


def parts_of(model: LanguageModel, batch: int, length: int) -> list[Part]:
    """Returns the pieces of a forward pass over `[batch, length]` tokens; equal ones are counted together.

    A `RecurrentBlock` comes as linear maps, convolution, gates and scan; any other mixer comes whole.
    """
    pieces: dict[str, Part] = {}
    for part in _pieces(model, batch, length):
        before = pieces.get(part.name)
        pieces[part.name] = part if before is None else before._replace(times=before.times + 1)
    return list(pieces.values())


def _pieces(model: LanguageModel, batch: int, length: int) -> Iterator[Part]:
    tokens = jnp.zeros((batch, length), jnp.int32)
    width = model.norm.scale[...].shape[0]
    x = _random(batch, length, width)
    yield _part("embedding", lambda module, tokens: module(tokens), model.embedding, tokens)
    for block in model.blocks:
        yield _part("norms", lambda module, x: module(x), block.mixer_norm, x)
        yield from _mixer(block.mixer, x)
        if block.mlp is None:
            continue
        yield _part("norms", lambda module, x: module(x), block.mlp_norm, x)
        yield _part("MLP", lambda module, x: module(x), block.mlp, x)
    yield _part("norms", lambda module, x: module(x), model.norm, x)
    yield _part("head", lambda module, x: module.logits(x), model.embedding, x)


def _mixer(mixer: Mixer, x: Array) -> Iterator[Part]:
    if type(mixer) is not RecurrentBlock:
        name = type(mixer).__name__
        name = name if mixer.window is None else f"{name}, window {mixer.window}"
        yield _part(name, lambda module, x: module(x, None, None)[0], mixer, x)
        return
    batch, length, _ = x.shape
    u = _random(batch, length, mixer.width_rnn)
    yield _part("linear maps", _linear_maps, nnx.List([mixer.input, mixer.gate, mixer.output]), x, u)
    yield _part("conv", _conv, mixer.conv, u)
    yield _part("gates", lambda module, u: module.gated(u), mixer.rglru, u)
    yield Part("scan", 1, lambda _, u, a: linear_scan(u, a)[0], ((), u, jax.nn.sigmoid(u)))


def _conv(conv: CausalConv1D, u: Array) -> Array:
    return conv(u, None, jnp.zeros((u.shape[0], conv.taps - 1, u.shape[2])))[0]


def _linear_maps(maps: nnx.List, x: Array, u: Array) -> tuple[Array, Array]:
    into, gate, out = maps
    inner, branch = side_by_side(x, into, gate)
    return inner, out(gelu_times(branch, u))


def _part(name: str, function: Callable[..., Any], module: Any, *arguments: Array) -> Part:
    """Returns the piece as a pure function whose first argument is the module's parameters."""
    graph, state = nnx.split(module)
    return Part(name, 1, lambda state, *rest: function(nnx.merge(graph, state), *rest), (state, *arguments))


def _random(*shape: int) -> Array:
    return jax.random.normal(random_key(0), shape)
