"""A right task, and many wrong ways to write one: each breaks one promise, which `WRONG` names beside it."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.tasks import Example

WRONG: dict[str, tuple[type, str]] = {}


@dataclass(frozen=True)
class Parity:
    """Bits, and at each whether the number of ones so far is odd (Merrill et al. 2024, arXiv 2404.08819)."""

    length: int = 24
    vocab_size: int = 2
    answer_length = 0
    scored = None
    chance = 0.5
    version = 1

    def sample(self, key, length):
        tokens = jax.random.randint(key, (length,), 0, 2)
        return Example(tokens, jnp.cumsum(tokens) % 2, jnp.ones(length, bool))

    def solve(self, tokens):
        return np.cumsum(tokens) % 2, np.ones(len(tokens), bool)

    def describe(self, tokens):
        return " ".join(map(str, tokens))


def breaks(promise):
    """Lists a wrong task with the promise that it breaks."""

    def listed(wrong):
        WRONG[wrong.__name__] = (dataclass(frozen=True)(wrong), promise)
        return wrong

    return listed


class After(Parity):
    """The right one, with something done to its example."""

    def sample(self, key, length):
        return self.spoilt(super().sample(key, length))


@breaks("vocabulary")
class TokensOutOfTheVocabulary(After):
    def spoilt(self, example):
        return example._replace(tokens=example.tokens + 1)


@breaks("vocabulary")
class TokensBelowNothing(After):
    def spoilt(self, example):
        return example._replace(tokens=example.tokens - 1)


@breaks("vocabulary")
class TargetsOutOfTheVocabulary(After):
    def spoilt(self, example):
        return example._replace(targets=example.targets + 2)


@breaks("example")
class TokensAreFloats(After):
    def spoilt(self, example):
        return example._replace(tokens=example.tokens * 1.0)


@breaks("example")
class TheMaskIsOfNumbers(After):
    def spoilt(self, example):
        return example._replace(mask=example.mask.astype(jnp.int32))


@breaks("example")
class OneTokenLess(After):
    def spoilt(self, example):
        return Example(*(field[1:] for field in example[:3]))


@breaks("example")
class GivesABatch(After):
    def spoilt(self, example):
        return Example(*(field[None] for field in example[:3]))


@breaks("example")
class GivesATuple(After):
    def spoilt(self, example):
        return tuple(example[:3])


@breaks("example")
class GivesTheTokensAlone(After):
    def spoilt(self, example):
        return example.tokens


@breaks("example")
class ForgetsTheAnswer(Parity):
    answer_length = 4


@breaks("example")
class KnowsOneLength(Parity):
    def sample(self, key, length):
        return super().sample(key, self.length)


@breaks("example")
class AsksATracer(Parity):
    def sample(self, key, length):
        tokens = jax.random.randint(key, (length,), 0, 2)
        return super().sample(key, length) if int(tokens[0]) else super().sample(jax.random.key(0), length)


@breaks("scored")
class ScoresNothing(After):
    def spoilt(self, example):
        return example._replace(mask=jnp.zeros_like(example.mask))


@breaks("scored")
class ScoresMoreThanItSays(Parity):
    scored = 1


@breaks("keys")
class DrawsWithNumpy(Parity):
    def sample(self, key, length):
        tokens = jnp.asarray(np.random.default_rng().integers(0, 2, length), jnp.int32)
        return Example(tokens, jnp.cumsum(tokens) % 2, jnp.ones(length, bool))


@breaks("keys")
class IgnoresItsKey(Parity):
    def sample(self, key, length):
        return super().sample(jax.random.key(0), length)


@breaks("solve")
class SolvesAnotherRule(Parity):
    def solve(self, tokens):
        return 1 - np.cumsum(tokens) % 2, np.ones(len(tokens), bool)


@breaks("solve")
class SolvesOneTooLate(Parity):
    def solve(self, tokens):
        return np.roll(np.cumsum(tokens) % 2, 1), np.ones(len(tokens), bool)


@breaks("solve")
class SolvesAnotherPosition(Parity):
    def solve(self, tokens):
        return np.cumsum(tokens) % 2, np.arange(len(tokens)) > 0


@breaks("solve")
class SolvesWithoutAMask(Parity):
    def solve(self, tokens):
        return np.cumsum(tokens) % 2


@breaks("solve")
class SolvesTheLastAlone(Parity):
    def solve(self, tokens):
        return np.sum(tokens) % 2, np.ones(1, bool)


@breaks("solve")
class ChangesItsTokens(Parity):
    def solve(self, tokens):
        found = super().solve(tokens)
        tokens[:] = 0
        return found


@breaks("chance")
class ChanceIsAWord(Parity):
    chance = "1/2"


@breaks("chance")
class ChanceIsAPercentage(Parity):
    chance = 50


@breaks("numbers")
class TheVocabularyIsAFloat(Parity):
    vocab_size: float = 2.5


@breaks("numbers")
class CannotBeHashed(Parity):
    """It has a list, as a YAML file gives it, but programs are looked up by the hash of their task."""

    places: list[int] = field(default_factory=lambda: [1, 2])


@breaks("numbers")
class ScoresMoreThanThereIs(Parity):
    scored = 25


@breaks("numbers")
class NoVersion(Parity):
    version = None


@breaks("solve")
class SolvesShortOnes(Parity):
    """At lengths beyond that of training its rule is another."""

    def solve(self, tokens):
        targets, mask = super().solve(tokens)
        return (targets if len(tokens) <= 24 else 1 - targets), mask


@breaks("scored")
class ScoresShortOnes(After):
    def spoilt(self, example):
        return example._replace(mask=example.mask & (len(example.mask) <= 24))


@breaks("describe")
class DescribesAList(Parity):
    def describe(self, tokens):
        return tokens.tolist()


@breaks("ordinary")
class OrdinaryTokensAreTooFew(Parity):
    def ordinary(self, key, length):
        return jax.random.randint(key, (length - 1,), 0, 2)


@breaks("ordinary")
class AnOrdinaryTokenIsNoToken(Parity):
    def ordinary(self, key, length):
        return jnp.full((length,), 2)


@breaks("cut")
class CutsWithOtherTargets(Parity):
    def cut(self, example, length):
        is_kept = jnp.arange(example.mask.shape[-1]) < length
        return example._replace(targets=1 - example.targets, mask=example.mask & is_kept)


@breaks("cut")
class ScoresWhatIsCutOff(Parity):
    def cut(self, example, length):
        return example


class Planted(Parity):
    """One whose answer stands at its place, among zeros; `answers` and `query` are as of any such task."""

    answers, query = 2, 1

    def plant(self, key, length, place, answer):
        return jnp.zeros((length,), jnp.int32).at[place].set(answer)


@breaks("plant")
class PlantsNothing(Planted):
    def plant(self, key, length, place, answer):
        return jnp.zeros((length,), jnp.int32)


@breaks("plant")
class PlantsNoToken(Planted):
    def plant(self, key, length, place, answer):
        return super().plant(key, length, place, answer + 2)


class NoChance:
    """A task without `chance` and `solve`."""

    length, vocab_size, answer_length, scored, version = 24, 2, 0, None, 1
    sample, describe = Parity.sample, Parity.describe


class Nothing:
    """No task at all."""


UNBUILT = {
    "NoChance": (NoChance, "NoChance has no chance, solve; a task has vocab_size,"),
    "Nothing": (Nothing, "Nothing has no vocab_size, length,"),
}
"""Those that are refused before they are looked at, with what is said."""
