"""A right mixer, and many wrong ways to write one: each breaks one promise, which `WRONG` names beside it."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from evalkit.models.layers import scanned

WRONG: dict[str, tuple[type, str]] = {}


class MinGRU(nnx.Module):
    """Feng et al. 2024, arXiv 2410.01201: a gated recurrence whose gates see the input alone."""

    window = None

    def __init__(self, width, *, rngs):
        self.width = width
        self.gate = nnx.Linear(width, width, rngs=rngs)
        self.candidate = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        y, last = self.recurrence(x, positions, cache)
        return y, None if cache is None else last

    def recurrence(self, x, positions, h):
        z = jax.nn.sigmoid(self.gate(x))
        return scanned(z * self.candidate(x), 1 - z, positions, h)

    def init_cache(self, batch, length):
        return jnp.zeros((batch, self.width))


def breaks(promise):
    """Lists a wrong mixer with the promise that it breaks."""

    def listed(wrong):
        WRONG[wrong.__name__] = (wrong, promise)
        return wrong

    return listed


class After(MinGRU):
    """The right one, with something done to its output."""

    def __call__(self, x, positions, cache):
        y, cache = super().__call__(x, positions, cache)
        return self.spoilt(x, y), cache


class Shares(MinGRU):
    """A right one that gives its inputs to the next of its kind, which adds them; a model of it has two blocks."""

    value_width = 8

    def with_values(self, x, positions, cache, values):
        y, cache = self(x, positions, cache)
        return y if values is None else y + values, cache, self.shared(x, positions)

    def shared(self, x, positions):
        return x


@breaks("length")
class TakesDocumentsForOneWithoutACache(MinGRU):
    """It breaks `packing` as well, which is asked later."""

    def __call__(self, x, positions, cache):
        return super().__call__(x, None if cache is None else positions, cache)


@breaks("length")
class DecodesWronglyFarOn(MinGRU):
    """As a ring that is written one place late once it is full, where one token comes at a time."""

    def __call__(self, x, positions, cache):
        if cache is None:
            return super().__call__(x, positions, None)
        h, seen = cache
        y, h = super().__call__(x, positions, h)
        is_real = jnp.ones(x.shape[:2], bool) if positions is None else positions >= 0
        if x.shape[1] == 1:
            y = jnp.where((seen >= 48)[:, None, None], -y, y)
        return y, (h, seen + is_real.sum(axis=1, dtype=jnp.int32))

    def init_cache(self, batch, length):
        return super().init_cache(batch, length), jnp.zeros((batch,), jnp.int32)


@breaks("causality")
class SharesTheNextToken(Shares):
    def shared(self, x, positions):
        return jnp.roll(x, -1, axis=1).at[:, -1].set(0)


@breaks("batch")
class SharesWithOtherRows(Shares):
    def shared(self, x, positions):
        return x + x.mean(axis=0, keepdims=True)


@breaks("chunks")
class SharesTheTokenBeforeWithoutACache(Shares):
    def shared(self, x, positions):
        return jnp.roll(x, 1, axis=1).at[:, 0].set(0)


@breaks("causality")
class SeesTheNextToken(After):
    def spoilt(self, x, y):
        return y + jnp.roll(x, -1, axis=1).at[:, -1].set(0)


@breaks("causality")
class AddsTheMeanOfAll(After):
    def spoilt(self, x, y):
        return y + x.mean(axis=1, keepdims=True)


@breaks("causality")
class AttendsWithoutAMask(After):
    def spoilt(self, x, y):
        return y + jax.nn.softmax(x @ x.swapaxes(1, 2)) @ x


@breaks("causality")
class ChoosesTheLargestOfAll(After):
    """A hard choice, through which no gradient goes."""

    def spoilt(self, x, y):
        chosen = jnp.argmax(x[..., :1], axis=1, keepdims=True)
        return y + jax.lax.stop_gradient(jnp.take_along_axis(x, chosen, axis=1))


@breaks("causality")
class NormsOverTime(After):
    def spoilt(self, x, y):
        return (y - y.mean(axis=1, keepdims=True)) / (y.std(axis=1, keepdims=True) + 1e-3)


@breaks("causality")
class TurnsTimeAround(After):
    def spoilt(self, x, y):
        return y[:, ::-1]


@breaks("causality")
class SortsInTime(After):
    def spoilt(self, x, y):
        return jnp.sort(y, axis=1)


@breaks("causality")
class SeesTheLastToken(After):
    def spoilt(self, x, y):
        return y + x[:, -1:]


@breaks("causality")
class SumsFromTheEnd(After):
    def spoilt(self, x, y):
        return y + jnp.cumsum(x[:, ::-1], axis=1)[:, ::-1]


@breaks("causality")
class ScalesByTheLargest(After):
    def spoilt(self, x, y):
        return y / (1 + jnp.abs(x).max(axis=(1, 2), keepdims=True))


@breaks("causality")
class FourierOverTime(After):
    def spoilt(self, x, y):
        return y + jnp.fft.fft(x, axis=1).real


@breaks("batch")
class NormsOverTheBatch(After):
    def spoilt(self, x, y):
        return y - y[:1] * 0.5


@breaks("batch")
class MeanOfTheBatch(After):
    def spoilt(self, x, y):
        return y + x.mean(axis=(0, 1), keepdims=True)


@breaks("batch")
class RollsTheBatch(After):
    def spoilt(self, x, y):
        return y + jnp.roll(x, 1, axis=0) * (jnp.arange(x.shape[1]) == 0)[None, :, None]


@breaks("shapes")
class DropsTheBatch(After):
    def spoilt(self, x, y):
        return y[0]


@breaks("shapes")
class TurnsTheAxes(After):
    def spoilt(self, x, y):
        return y.swapaxes(0, 1)


@breaks("shapes")
class HasAnotherWidth(After):
    def spoilt(self, x, y):
        return jnp.concatenate([y, y], axis=-1)


@breaks("shapes")
class OneTokenLess(After):
    def spoilt(self, x, y):
        return y[:, 1:]


@breaks("shapes")
class KnowsOneLength(After):
    def spoilt(self, x, y):
        return y + jnp.reshape(x, (-1, 256, self.width))


@breaks("shapes")
class AsksATracer(After):
    def spoilt(self, x, y):
        return y if x.sum() > 0 else -y


@breaks("shapes")
class UsesNumpy(After):
    def spoilt(self, x, y):
        return jnp.asarray(np.tanh(np.asarray(y)))


@breaks("shapes")
class IsComplex(After):
    def spoilt(self, x, y):
        return y * 1j


@breaks("account")
class KeepsItsFlopsAsANumber(MinGRU):
    flops = 7


@breaks("account")
class CountsHalfAnOperation(MinGRU):
    def flops(self, length):
        return length / 2


@breaks("account")
class CountsWithoutALength(MinGRU):
    def flops(self):
        return 7


@breaks("finite")
class TakesALogarithm(After):
    def spoilt(self, x, y):
        return jnp.log(y)


@breaks("gradients")
class TakesARootOfNothing(After):
    def spoilt(self, x, y):
        return jnp.sqrt(jnp.abs(x - x)) + y


@breaks("chunks")
class CountsPositionsFromEachChunk(After):
    def spoilt(self, x, y):
        return y + jnp.arange(x.shape[1])[None, :, None] / 8


@breaks("chunks")
class DrawsWhenTraced(After):
    def spoilt(self, x, y):
        return y * np.random.default_rng().normal()


@breaks("chunks")
class IgnoresItsCache(MinGRU):
    def recurrence(self, x, positions, h):
        return super().recurrence(x, positions, None)


@breaks("chunks")
class ReturnsTheCacheThatWasGiven(MinGRU):
    def __call__(self, x, positions, cache):
        return super().__call__(x, positions, cache)[0], cache


@breaks("chunks")
class KeepsTheFirstState(MinGRU):
    def __call__(self, x, positions, cache):
        y, _ = self.recurrence(x, positions, cache)
        return y, None if cache is None else y[:, 0]


@breaks("chunks")
class ForgetsHalf(MinGRU):
    def __call__(self, x, positions, cache):
        y, last = super().__call__(x, positions, cache)
        return y, None if last is None else last / 2


@breaks("shapes")
class ReturnsNoPair(MinGRU):
    def __call__(self, x, positions, cache):
        return self.recurrence(x, positions, cache)[0]


@breaks("cache")
class NeverReturnsACache(MinGRU):
    def __call__(self, x, positions, cache):
        return self.recurrence(x, positions, cache)[0], None


@breaks("cache")
class GrowsItsCache(MinGRU):
    def __call__(self, x, positions, cache):
        y, _ = self.recurrence(x, positions, None)
        return y, None if cache is None else jnp.concatenate([cache, y[:, -1]], axis=1)


@breaks("cache")
class ChangesTheStructure(MinGRU):
    def __call__(self, x, positions, cache):
        y, last = super().__call__(x, positions, cache)
        return y, None if last is None else {"h": last}


@breaks("cache")
class ChangesTheDtype(MinGRU):
    def __call__(self, x, positions, cache):
        y, last = super().__call__(x, positions, cache)
        return y, None if last is None else last.astype(jnp.bfloat16)


@breaks("cache")
class CacheWithoutABatch(MinGRU):
    def __call__(self, x, positions, cache):
        y, _ = super().__call__(x, positions, None if cache is None else jnp.tile(cache, (x.shape[0], 1)))
        return y, None if cache is None else cache

    def init_cache(self, batch, length):
        return jnp.zeros((1, self.width))


@breaks("cache")
class CacheOfNoLength(MinGRU):
    def init_cache(self, batch):
        return jnp.zeros((batch, self.width))


@breaks("cache")
class CacheOfAScalar(MinGRU):
    def __call__(self, x, positions, cache):
        h = None if cache is None else cache["h"]
        y, last = self.recurrence(x, positions, h)
        return y, None if cache is None else {"h": last, "step": cache["step"] + x.shape[1]}

    def init_cache(self, batch, length):
        return {"h": jnp.zeros((batch, self.width)), "step": jnp.zeros((), jnp.int32)}


@breaks("resets")
class IgnoresPositions(MinGRU):
    def recurrence(self, x, positions, h):
        pads = None if positions is None else jnp.where(positions < 0, -1, 1)
        return super().recurrence(x, pads, h)


@breaks("padding")
class WritesPads(MinGRU):
    def recurrence(self, x, positions, h):
        return super().recurrence(x, None if positions is None else jnp.abs(positions), h)


@breaks("resets")
class ResetsTheFirstRowAlone(MinGRU):
    def recurrence(self, x, positions, h):
        if positions is not None:
            positions = jnp.where((jnp.arange(x.shape[0]) > 0)[:, None] & (positions == 0), 1, positions)
        return super().recurrence(x, positions, h)


@breaks("padding")
class IsNotFiniteAtPads(MinGRU):
    def recurrence(self, x, positions, h):
        y, last = super().recurrence(x, positions, h)
        return (y if positions is None else jnp.where((positions < 0)[..., None], jnp.nan, y)), last


@breaks("length")
class SeesFarTokens(After):
    """Every position sees token 40, if there is one."""

    def spoilt(self, x, y):
        return y + x[:, 40:41] if x.shape[1] > 40 else y


@breaks("length")
class KeepsSixtyTokens(MinGRU):
    """It forgets all of its state once more tokens than that went through the cache."""

    def __call__(self, x, positions, cache):
        h, seen = (None, None) if cache is None else cache
        y, last = self.recurrence(x, positions, h)
        if cache is None:
            return y, None
        steps = x.shape[1] if positions is None else (positions >= 0).sum(axis=1)
        seen = seen + steps
        return y, (jnp.where((seen > 60)[:, None], 0.0, last), seen)

    def init_cache(self, batch, length):
        return jnp.zeros((batch, self.width)), jnp.zeros(batch, jnp.int32)


@breaks("length")
class ForgetsPositionsOfManyTokens(MinGRU):
    """A faster path for many tokens, in which documents and pads were forgotten."""

    def recurrence(self, x, positions, h):
        return super().recurrence(x, None if x.shape[1] >= 60 else positions, h)


@breaks("gradients")
class HasAParameterOfNoUse(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.more = nnx.Linear(width, width, rngs=rngs)


@breaks("window")
class SeesMoreThanItsWindow(MinGRU):
    window = 4


@breaks("parameters")
class HasWholeNumbers(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.table = nnx.Param(jnp.arange(width))


@breaks("parameters")
class HasHalfParameters(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.gate = nnx.Linear(width, width, param_dtype=jnp.bfloat16, rngs=rngs)


@breaks("same key")
class StartsAnywhere(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.scale = nnx.Param(jnp.asarray(np.random.default_rng().normal(size=width).astype(np.float32)))

    def recurrence(self, x, positions, h):
        return super().recurrence(x * self.scale[...][None, None], positions, h)


class NoInitCache(nnx.Module):
    window = None

    def __init__(self, width, *, rngs):
        self.map = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        return self.map(x), cache


class NoWindow(nnx.Module):
    def __init__(self, width, *, rngs):
        self.map = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        return x, cache

    def init_cache(self, batch, length):
        return jnp.zeros((batch, 1))


class WindowOfAWord(MinGRU):
    window = "8"


class WindowOfNothing(MinGRU):
    window = 0


class NotCalled(nnx.Module):
    window = None

    def __init__(self, width, *, rngs):
        self.map = nnx.Linear(width, width, rngs=rngs)

    def init_cache(self, batch, length):
        return jnp.zeros((batch, 1))


class DropsOut(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)


class NoRngs(MinGRU):
    def __init__(self, width):
        super().__init__(width, rngs=nnx.Rngs(0))


class NoWidth(MinGRU):
    def __init__(self, *, rngs):
        super().__init__(8, rngs=rngs)


class NoModule:
    window = None

    def __init__(self, width, *, rngs):
        self.map = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        return self.map(x), cache

    def init_cache(self, batch, length):
        return jnp.zeros((batch, 1))


class KeepsAnArray(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.scale = jnp.linspace(0.1, 0.9, width)


class KeepsANumPyArray(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.gate.scale = np.linspace(0.1, 0.9, width)


class Misspelt(MinGRU):
    def __init__(self, width, *, rngs):
        super().__init__(width, rngs=rngs)
        self.gates = nnx.Liner(width, width, rngs=rngs)


UNBUILT = {
    "DropsOut": (DropsOut, "a mixer keeps nothing but parameters (nnx.Param)"),
    "NoInitCache": (NoInitCache, "NoInitCache has no init_cache; a mixer has"),
    "NoWindow": (NoWindow, "NoWindow has no window; a mixer has"),
    "WindowOfAWord": (WindowOfAWord, "WindowOfAWord has window='8'"),
    "WindowOfNothing": (WindowOfNothing, "WindowOfNothing has window=0"),
    "NotCalled": (NotCalled, "NotCalled has no __call__"),
    "NoModule": (NoModule, "NoModule is no flax.nnx.Module"),
    "KeepsAnArray": (KeepsAnArray, "KeepsAnArray.scale is an array and no parameter"),
    "KeepsANumPyArray": (KeepsANumPyArray, "KeepsANumPyArray.gate.scale is an array and no parameter"),
    "NoRngs": (NoRngs, "unexpected keyword argument 'rngs'"),
    "NoWidth": (NoWidth, "unexpected keyword argument 'width'"),
    "Misspelt": (Misspelt, "'Liner' (wrong_mixers.py:"),
}
"""Those that a model cannot be built of, with what is said."""
