"""Tasks: the jitted sampler against the rule in plain NumPy, and batches that never change within a version."""

import hashlib
import json
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.configuration import experiment as config
from evalkit.core import streams
from evalkit.tasks.bracket_arithmetic import BracketArithmetic
from evalkit.tasks.copying import Copying
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.tasks.mad.fuzzy_recall import FuzzyRecall
from evalkit.tasks.mad.in_context_recall import InContextRecall
from evalkit.tasks.mad.memorisation import Memorisation
from evalkit.tasks.mad.noisy_recall import NoisyRecall
from evalkit.tasks.mqar import MQAR
from evalkit.tasks.needle_tokens import NeedleTokens
from evalkit.tasks.ngram_lookup import NgramLookup
from evalkit.tasks.palindrome import Palindrome
from evalkit.tasks.regular_language import RegularLanguage
from evalkit.tasks.selective_copying import NOISE, SelectiveCopying
from evalkit.tasks.stack import Stack
from evalkit.tasks.state_tracking import StateTracking
from support.shrunk import DRAWN

GOLDEN = {
    "induction_heads v1": "a6e7c44710db410a",
    "phonebook v1": "0e22e1cb7f86bbf0",
    "selective_copying v1": "1cb72d3e05f30227",
}
"""A digest of the first batch of each version."""
VARIANTS = {
    "induction": InductionHeads(),
    "induction-prefix": InductionHeads(trigger="prefix"),
    "induction-fixed": InductionHeads(trigger="fixed"),
    "induction-triggers": InductionHeads(triggers=3),
    "induction-all": InductionHeads(loss="all", vocab_size=40),
    "copying": SelectiveCopying(length=64),
    "copying-mad": SelectiveCopying(length=64, layout="mad"),
    "copying-lm": SelectiveCopying(length=64, layout="lm", data_tokens=5),
    "copying-total": SelectiveCopying(length=64, length_includes_answer=True),
    "mqar-many": MQAR(vocab_size=24, pairs=8, random_non_queries=True),  # many fillers are keys
    "mqar-fewer": MQAR(vocab_size=64, pairs=8, fewest_pairs=2),
    "mqar-rewrites": MQAR(vocab_size=24, pairs=4, rewrites=3),
    "words-s5": StateTracking(group="s5"),
    "words-a5-two": StateTracking(group="a5", generators=2),
    "needle-sentence": NeedleTokens(haystack="sentence", digits=3),
    "language-parity": RegularLanguage(language="parity"),
    "language-cycle": RegularLanguage(language="cycle_navigation"),
    "language-arithmetic": RegularLanguage(language="modular_arithmetic"),
    "language-arithmetic-everywhere": RegularLanguage(language="modular_arithmetic", asked="everywhere"),
    "language-pairs-everywhere": RegularLanguage(language="even_pairs", asked="everywhere"),
    "brackets-sums": BracketArithmetic(multiplication=False),
    "stack-one": Stack(stacks=1, elements=2),
    "ngram-prefix": NgramLookup(vocab_size=4, key="prefix", ngram=2, answer=2),  # an n-gram stands at several places
    "noisy-answers": NoisyRecall(loss="answer"),
    "noisy-one-query": NoisyRecall(multi_query=False, frac_noise=0.9),
    "fuzzy-answers": FuzzyRecall().judged,
    "fuzzy-one-query": FuzzyRecall(multi_query=False),
}
# Of the first two the defaults are variants above, and `conf/` has the defaults: `test_config` holds that. A needle is
# longer than the lengths below, and has tests of its own.
IN_CONF = {f"conf-{name}": name for name in DRAWN if name not in ("induction_heads", "selective_copying", "needle")}


LENGTHS = (34, 64, 200)
SAMPLED = [
    pytest.param(name, length, marks=[pytest.mark.exhaustive] * (which != i % len(LENGTHS)))
    for i, name in enumerate([*VARIANTS, *IN_CONF])
    for which, length in enumerate(LENGTHS)
]
"""Every variant at one length in every run, for each length is a program."""


@lru_cache
def variant(name: str):
    return VARIANTS[name] if name in VARIANTS else config.build_task(IN_CONF[name])


@lru_cache
def sampler(name: str, length: int):
    return jax.jit(lambda seed: variant(name).sample(jax.random.key(seed), length))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), SAMPLED)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31 - 1))
def test_the_sampler_follows_the_rule(name: str, length: int, seed: int) -> None:
    task = variant(name)
    example = jax.device_get(sampler(name, length)(seed))
    assert example.tokens.shape == example.targets.shape == example.mask.shape == (length + task.answer_length,)
    assert example.tokens.min() >= 0 and example.tokens.max() < task.vocab_size
    targets, mask = task.solve(example.tokens)
    assert mask.any() and (task.scored is None or mask.sum() <= task.scored)
    np.testing.assert_array_equal(example.mask, mask)
    np.testing.assert_array_equal(example.targets[mask], targets[mask])
    assert len(task.describe(example.tokens).split()) == len(example.tokens)


def test_held_out_sequences_of_induction_heads_score_the_answer_alone() -> None:
    example = InductionHeads(length=16, loss="all").judged.sample(jax.random.key(0), 16)
    assert np.flatnonzero(example.mask).tolist() == [15]


train_batch = jax.jit(streams.train_batch, static_argnames=("task", "batch", "length"))


def batch(task, count=400, length=64):
    keys = jax.random.split(jax.random.key(3), count)
    return jax.device_get(jax.jit(jax.vmap(lambda key: task.sample(key, length)))(keys))


def test_the_special_token_stands_twice_and_anywhere():
    task = InductionHeads()
    tokens = batch(task).tokens
    special = tokens == task.special
    assert (special.sum(axis=1) == 2).all() and special[:, -1].all()
    places = special[:, :-1].argmax(axis=1)
    assert places.min() <= 2 and places.max() == 61  # the last place that leaves room for the answer
    assert 26 < places.mean() < 35


def test_the_answer_is_any_ordinary_token_about_equally_often():
    answers = batch(InductionHeads()).targets[:, -1]
    counts = np.bincount(answers, minlength=15)
    assert len(counts) == 15 and counts.min() > 8


def test_copying_spreads_its_data_evenly():
    """Uniform places (MAD's own scheme leaves nearly regular gaps, a different and easier task)."""
    task = SelectiveCopying()
    example = batch(task, length=256)
    data = example.tokens[:, :256] != NOISE
    assert (data.sum(axis=1) == 16).all()
    gaps = np.diff(np.argwhere(data)[:, 1].reshape(-1, 16), axis=1)
    assert gaps.std() > 10  # 3.6 with near-regular gaps
    assert abs(data.mean(axis=0).reshape(4, 64).sum(axis=1) - 4).max() < 0.5


def test_training_validation_and_test_are_different_streams():
    task = InductionHeads(length=64)
    train = train_batch(task, np.uint32(0), 0, 32, 64).tokens
    validation = streams.held_out_batch(task, streams.VALIDATION, 0, 32, 64).tokens
    test = streams.held_out_batch(task, streams.TEST, 0, 32, 64).tokens
    rows = {tuple(row) for part in (train, validation, test) for row in np.asarray(part).tolist()}
    assert len(rows) == 96


def test_a_held_out_sequence_does_not_depend_on_the_batch():
    task = SelectiveCopying(length=64)
    whole = streams.held_out_batch(task, streams.TEST, 0, 8, 64).tokens
    part = streams.held_out_batch(task, streams.TEST, 5, 2, 64).tokens
    np.testing.assert_array_equal(whole[5:7], part)


def digest(task) -> str:
    example = jax.device_get(train_batch(task, np.uint32(0), 0, 4, task.length))
    data = b"".join(np.asarray(field).astype("<i4").tobytes() for field in example[:3])
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.mark.parametrize("name", sorted({key.split()[0] for key in GOLDEN}))
def test_the_first_batch_is_what_it_always_was(name: str) -> None:
    task = config.build_task(name)
    key = f"{name} v{task.version}"
    assert GOLDEN.get(key) == digest(task), (
        f"the first training batch of {key} is not the one in GOLDEN. If the task is meant to change, "
        f"raise its `version` and add {json.dumps({f'{name} vN': digest(task)})}; results of the two versions "
        "must not be compared. If it is not meant to, this is a defect (or JAX changed its random bits)."
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: InductionHeads(vocab_size=2), "vocab_size=2; allowed: at least 3"),
        (lambda: InductionHeads(length=2), "length=2 is too short"),
        (lambda: InductionHeads(trigger="end"), "allowed: uniform, prefix, fixed"),
        (lambda: InductionHeads(loss="some"), "allowed: answer, all"),
        (lambda: InductionHeads(triggers=0), "triggers=0; allowed: 1 or more"),
        (lambda: SelectiveCopying(length=8), "data_tokens=16 do not fit in a context of 8"),
        (lambda: SelectiveCopying(data_tokens=0), "data_tokens=0; allowed: 1 or more"),
        (lambda: SelectiveCopying(layout="x"), "allowed: markers, mad, lm"),
        (lambda: SelectiveCopying(vocab_size=3), "allowed: at least 4"),
        (lambda: MQAR(length=30), "length=30 is too short for pairs=8; use a length of at least 32"),
        (lambda: MQAR(length=31, fewest_pairs=1), "length=31 is too short for pairs=8; use a length of at least 32"),
        (lambda: MQAR(pairs=0), "pairs=0; allowed: 1 or more"),
        (lambda: MQAR(vocab_size=16), "vocab_size=16 has 7 keys; use at least 18 for pairs=8"),
        (lambda: MQAR(power_a=0), "power_a=0; allowed: above 0"),
        (lambda: MQAR(fewest_pairs=9), "fewest_pairs=9; allowed: 1 to pairs=8, or null"),
        (lambda: MQAR(rewrites=9), "rewrites=9; allowed: 0 to pairs=8"),
        (lambda: MQAR(rewrites=1, fewest_pairs=2), "rewrites=1; allowed: 0 with fewest_pairs"),
        (lambda: MQAR(vocab_size=18, rewrites=2), "vocab_size=18 has 9 values, and pairs=8 with rewrites=2 take 10"),
        (lambda: MQAR(length=32, rewrites=1), "length=32 is too short for pairs=8 and rewrites=1; .* at least 34"),
        (lambda: StateTracking(generators=1), "generators=1; allowed: 2 to 6 of s3, or null"),
        (lambda: NeedleTokens(length=12), "length=12 is too short for digits=7; use a length of at least 13"),
        (lambda: NeedleTokens(vocab_size=15), "vocab_size=15; allowed: 16 to 1,012"),
        (lambda: NeedleTokens(vocab_size=1013), "vocab_size=1013; allowed: 16 to 1,012"),
        (lambda: NeedleTokens(haystack="hay"), "allowed: sentence, markov"),
        (lambda: NeedleTokens(digits=0), "digits=0; allowed: 1 or more"),
        (lambda: StateTracking(group="s4"), "group='s4'; allowed: z2, s3, z60, a4xz5, a5, s5"),
        (lambda: StateTracking(length=0), "length=0; allowed: 1 or more"),
        (
            lambda: RegularLanguage(language="stack"),
            "'stack'; allowed: parity, even_pairs, cycle_navigation, modular_a",
        ),
        (lambda: Palindrome(length=33), "length=33; allowed: even, at least 2"),
        (lambda: Palindrome(vocab_size=2), "vocab_size=2; allowed: at least 3"),
        (lambda: Stack(length=5), "length=5; allowed: at least 6"),
        (lambda: Stack(stacks=0), "stacks=0; allowed: 1 or more"),
        (lambda: Stack(elements=1), "elements=1; allowed: 2 or more"),
        (lambda: RegularLanguage(length=0), "length=0; allowed: 1 or more"),
        (lambda: BracketArithmetic(length=0), "length=0; allowed: 1 or more"),
        (lambda: Copying(length=33), "length=33; allowed: even, at least 4"),
        (lambda: Copying(vocab_size=4), "vocab_size=4; allowed: at least 5"),
        (
            lambda: NgramLookup(length=10),
            "length=10 is too short for ngram=3, answer=3, .* at least 11",
        ),
        (lambda: NgramLookup(ngram=0), "ngram=0; allowed: 1 or more"),
        (lambda: NgramLookup(key="infix"), "allowed: suffix, prefix"),
        (lambda: InContextRecall(length=5), "length=5; allowed: even, at least 4"),
        (lambda: InContextRecall(vocab_size=3), "leaves 3 tokens for keys and values; .* leave 4 at least"),
        (lambda: InContextRecall(frac_noise=0.5), "frac_noise=0.5 needs tokens; give noise_vocab_size=1 or more"),
        (lambda: NoisyRecall(frac_noise=1.0), "frac_noise=1.0; allowed: from 0, below 1"),
        (lambda: InContextRecall(loss="some"), "allowed: all, answer"),
        (lambda: FuzzyRecall(length=12), "length=12 is too short .* at least 13"),
        (lambda: FuzzyRecall(k_motif_size=8), "k_motif_size=8; allowed: 1 to 7"),
        (
            lambda: FuzzyRecall(vocab_size=32, k_motif_size=9),
            "k_motif_size=9 with vocab_size=32 has more than 2.31 keys",
        ),
        (lambda: FuzzyRecall(key_sizes="some"), "allowed: any, longest"),
        (lambda: FuzzyRecall(vocab_size=3, k_motif_size=1, v_motif_size=1), "vocab_size=3 has one token for values"),
        (lambda: InductionHeads(fixed_place=9), "fixed_place=9 with trigger=uniform; give trigger=fixed too"),
        (lambda: Memorisation(length=3), "length=3; allowed: even, at least 2"),
        (lambda: Memorisation(map_seed=-1), "map_seed=-1; allowed: 0 or more"),
        (lambda: SelectiveCopying().sample(jax.random.key(0), 4), "do not fit in a context of 4"),
    ],
)
def test_an_impossible_task_is_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


class Documents(InductionHeads):
    """Two documents in a sequence, by its positions."""

    def sample(self, key, length):
        return super().sample(key, length)._replace(positions=jnp.arange(length) % (length // 2))


@pytest.mark.slow
def test_positions_of_a_shorter_sequence_stay_and_padding_is_told() -> None:
    task = Documents(vocab_size=8, length=16)
    positions = jax.jit(lambda step: streams.train_batch(task, 0, step, 8, 16, 8).positions)(0)
    assert positions is not None
    for row in np.asarray(positions):
        tokens = int((row >= 0).sum())
        assert row.tolist() == [*(np.arange(tokens) % (tokens // 2)).tolist(), *[-1] * (16 - tokens)]
