"""Generation: whatever the batch, the bucket and the chunk, each row is what it would be alone, without a cache."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import jax
import numpy as np
import pytest

from evalkit.core.contracts import Params, Pretrained
from evalkit.inference.generation import FIRST_LOOK, MOST_AT_ONCE, decoded, generate
from evalkit.inference.prefill import bucket, by_length
from evalkit.inference.sampling import Sampler
from evalkit.inference.texts import Ends, Generated, Row, finished
from evalkit.tasks.text.tokenizers import Bytes, Lossless
from support.shrunk import applied, params_of, shrunk

VOCABULARY, NEW = 64, 20
LENGTHS = (3, 40, 17, 41, 9)
MODELS = ["griffin", "hawk", "mqa"]


class Letters(Lossless):
    """A character a token, so that two texts are equal only if their tokens are."""

    name, vocab_size, bos = "letters", VOCABULARY, None

    def __init__(self, eos: int | None = None) -> None:
        self.eos = eos

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 48 for letter in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(48 + token) for token in tokens)


@lru_cache
def wild(name: str) -> Params:
    """Parameters with which a tiny model does not say one token for ever."""
    random = np.random.default_rng(3)
    fresh = params_of(shrunk(name, f"task.vocab_size={VOCABULARY}"))
    return jax.tree.map(lambda leaf: np.asarray(leaf + random.standard_normal(leaf.shape), np.float32), fresh)


def pretrained(name: str, eos: int | None = None) -> Pretrained:
    model = shrunk(name, f"task.vocab_size={VOCABULARY}")
    return Pretrained(model, wild(name), Letters(eos), "tiny", name, None)


def prompts() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]


def alone(name: str, tokens: list[int]) -> np.ndarray:
    """The logits after some tokens, all of them at once, without a cache."""
    padded = np.zeros((1, max(LENGTHS) + NEW), np.int32)
    padded[0, : len(tokens)] = tokens
    logits = applied(pretrained(name).model)(wild(name), padded)[0]
    return np.asarray(logits)[0, len(tokens) - 1]


@lru_cache
def expected(name: str, temperature: float, seed: int = 0) -> list[str]:
    """One prompt after the other, one token after the other."""
    texts = []
    for index, prompt in enumerate(prompts()):
        tokens = list(prompt)
        for step in range(NEW):
            logits = alone(name, tokens)
            if temperature:
                key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), index), step)
                logits = logits / temperature + np.asarray(jax.random.gumbel(key, logits.shape))
            tokens.append(int(logits.argmax()))
        texts.append(Letters().decode(tokens[len(prompt) :]))
    return texts


def texts_of(said: Sequence[Generated]) -> list[str]:
    return [text for text, _ in said]


GREEDY, DRAWN = 0.0, 1.5
DEFAULT = (
    ("griffin", 2, 7, GREEDY),
    ("griffin", 2, 7, DRAWN),
    ("mqa", 8, 16, DRAWN),
)
EVERY = itertools.product(MODELS, (1, 2, 8), (7, 16, 64), (GREEDY, DRAWN))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "chunk", "temperature"),
    [*DEFAULT, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in EVERY if case not in DEFAULT)],
)
def test_a_batch_says_what_each_prompt_alone_does(name: str, batch_size: int, chunk: int, temperature: float) -> None:
    settings = {"sampler": Sampler(temperature), "batch_size": batch_size, "chunk": chunk}
    texts = texts_of(generate(pretrained(name), prompts(), NEW, **settings))
    assert texts == expected(name, temperature)
    assert len(set("".join(texts))) > 5, "too few different tokens to tell right from wrong"


@pytest.mark.slow
def test_another_seed_and_another_place_draw_other_tokens() -> None:
    settings = {"sampler": Sampler(DRAWN), "batch_size": 2, "chunk": 7}
    one, other = (generate(pretrained("griffin"), [prompts()[0]] * 2, NEW, seed=seed, **settings) for seed in (0, 1))
    assert len({*one, *other}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("stop", [["{0}"], ["{0}", "{1}"]])
def test_a_text_ends_before_a_stop_string(stop: list[str]) -> None:
    """Stop strings taken from within the texts, on either side of where the host looks for them."""
    texts = expected("griffin", 1.5)
    marks = [mark.format(texts[0][15:18], texts[1][2:4]) for mark in stop]
    cut = [min([text.index(mark) for mark in marks if mark in text], default=NEW) for text in texts]
    assert len(set(cut)) > 1
    settings = {"sampler": Sampler(1.5), "batch_size": 2, "chunk": 7}
    said = generate(pretrained("griffin"), prompts(), NEW, stop=marks, **settings)
    assert texts_of(said) == [text[:end] for text, end in zip(texts, cut, strict=True)]


@pytest.mark.slow
def test_a_text_ends_before_the_end_token() -> None:
    texts = expected("griffin", 0.0)
    eos = texts[1][3]
    said = generate(pretrained("griffin", eos=ord(eos) - 48), prompts(), NEW, batch_size=2, chunk=7)
    assert texts_of(said) == [text.split(eos)[0] for text in texts] and len({len(text) for text in texts_of(said)}) > 1
    assert said == generate(pretrained("griffin"), prompts(), NEW, stop_tokens=[ord(eos) - 48], batch_size=2, chunk=7)
    turn = replace(pretrained("griffin"), ends=(ord(eos) - 48,))
    assert said == generate(turn, prompts(), NEW, batch_size=2, chunk=7)
    assert [len(one.tokens) for one in said] == [min(len(one.text) + 1, NEW) for one in said]


def test_the_stop_string_that_is_complete_first_ends_the_text() -> None:
    """However many tokens were decoded before anyone looked: `b` is there before `abc` is."""
    tokens = list(b"xabcd")
    ends = frozenset((Bytes.eos,))
    assert finished(Bytes(), tokens, Ends(ends, ("abc", "b"))) == Generated("xa", tuple(b"xab"))
    assert finished(Bytes(), tokens, Ends(ends, ("abc",))) == Generated("x", tuple(b"xabc"))
    assert finished(Bytes(), tokens, Ends(ends, ("e",))) is None
    ended = finished(Bytes(), [*tokens, Bytes.eos, *b"e"], Ends(ends, ("e",)))
    assert ended == Generated("xabcd", (*tokens, Bytes.eos))


@pytest.mark.slow
def test_one_program_serves_prompts_of_many_lengths() -> None:
    """A bounded cache does not depend on the prompt, so neither does any program, nor the memory that it takes."""
    known = pretrained("griffin")
    traced = []

    class Counted:
        window, init_cache = known.model.window, staticmethod(known.model.init_cache)
        init = parts = decay_mask = decays = states = flops = staticmethod(known.model.decay_mask)
        cache_bytes = staticmethod(known.model.cache_bytes)

        def apply(self, params, tokens, positions=None, cache=None, at=None):
            traced.append(tokens.shape)
            return known.model.apply(params, tokens, positions, cache, at)

    counted = Pretrained(Counted(), known.params, known.tokenizer, "tiny", "counted", None)
    for length in (5, 50, 500):
        generate(counted, [[1] * length], 4, batch_size=2, chunk=32)
    assert sorted(traced) == [(2, 1), (2, 8), (2, 32), (2, 32)]  # decoding; a short prompt; with pads, and without


def test_buckets_are_few_and_never_too_small() -> None:
    sizes = [bucket(length) for length in range(1, 5000)]
    assert all(length <= size <= 1.125 * length + 1 for length, size in enumerate(sizes, start=1))
    assert len(set(sizes[511:4096])) <= 3 * 8 + 1


def test_batches_hold_every_prompt_once_and_the_longest_first() -> None:
    batches = list(by_length(prompts(), 2))
    assert [[LENGTHS[index] for index in batch] for batch in batches] == [[41, 40], [17, 9], [3]]


@pytest.mark.parametrize(
    ("arguments", "settings", "words"),
    [
        (([[1]], 0), {}, "max_new_tokens=0; allowed: 1 or more"),
        (([[1]], 1), {"chunk": 0}, "chunk=0; allowed: 1 or more"),
        (([[1]], 1), {"seed": 2**31}, "seed=2147483648; allowed: 0 to 2147483647"),
        (([[1]], 1), {"stop_tokens": [64]}, "stop_tokens holds 64; allowed: 0 to 63"),
        (([[1]], 1), {"stop": [""]}, "stop holds an empty string"),
        (([[1], []], 1), {}, "prompt 1 is empty; give at least one token"),
        (([[1], [2, 64]], 1), {}, "prompt 1 has tokens from 2 to 64; allowed: 0 to 63"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple, settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        generate(pretrained("griffin"), *arguments, **{"batch_size": 2, "chunk": 7, **settings})


def test_ten_thousand_tokens_take_one_program_and_no_more_memory() -> None:
    """Looked at all the while; the programs were compiled and the arrays were there after the first look."""
    looks: list[tuple[int, int, int]] = []

    def heard(index: int, piece: str) -> None:
        live = sum(array.nbytes for array in jax.live_arrays())
        looks.append((len(piece), decoded._cache_size(), live))

    (said,) = generate(pretrained("griffin"), prompts()[:1], 10_000, batch_size=1, chunk=64, heard=heard)
    sizes, programs, live = (set(column) for column in zip(*looks[1:], strict=True))
    assert len(said.tokens) == sum(size for size, _, _ in looks) == 10_000
    assert {looks[0][0], max(sizes)} == {FIRST_LOOK, MOST_AT_ONCE} and len(looks) < 10_000 / MOST_AT_ONCE + 6
    assert len(programs) == 1 and max(live) <= looks[0][2]


@pytest.mark.slow
def test_pieces_of_texts_are_heard_as_they_come_and_make_up_the_texts() -> None:
    """What may become a stop string is held back until it is known; nothing of the string itself is heard."""
    texts = expected("griffin", 0.0)
    mark, heard = texts[0][14:18], dict[int, list[str]]()  # complete two tokens after the first look
    said = generate(
        pretrained("griffin"),
        prompts(),
        NEW,
        stop=[mark],
        batch_size=2,
        chunk=7,
        heard=lambda index, piece: heard.setdefault(index, []).append(piece),
    )
    assert ["".join(heard[index]) for index in range(len(said))] == texts_of(said)
    assert heard[0] == [texts[0][: texts[0].index(mark)]] or len(heard[0]) > 1
    assert any(len(pieces) > 1 for pieces in heard.values())


def test_a_character_is_heard_when_it_is_whole() -> None:
    row, letters = Row(Bytes(), Ends(frozenset((Bytes.eos,)), ("##",))), "né#".encode()
    assert [row.hear([byte], last=False) for byte in letters] == ["n", "", "é", ""]
    assert row.hear(list(b"x"), last=True) == "#x" and row.said == Generated("né#x", (*letters, ord("x")))
