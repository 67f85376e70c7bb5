"""What only the models of `conf/model/` must hold, shrunk; `tests/contract` holds what every model promises."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from evalkit.configuration import catalogue
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import LanguageModel
from evalkit.models import build, lm
from evalkit.models.layers.modules import BlockDiagonalLinear, GatedMLP, gelu_times
from evalkit.models.mixers import attention
from evalkit.models.mixers.attention import MQA, Marks, attend, rope
from evalkit.models.mixers.rglru import RecurrentBlock
from support.shrunk import WINDOW, every_model, overrides_of

MODELS = catalogue.options("model")
OFTEN = every_model(["griffin_released", "mamba"])
"""Of the other models `tests/contract` looks at pads, chunks and documents in every run."""
VOCABULARY, STEPS = 16, 30
TOLERANCE = 2e-5


@lru_cache
def model_of(name: str) -> LanguageModel:
    return Spec.of(["task=induction_heads", f"model={name}", *overrides_of(name)]).experiment.model


@lru_cache
def params_of(name: str):
    return jax.jit(model_of(name).init)(jax.random.key(0))


@lru_cache
def applied(name: str):
    return jax.jit(model_of(name).apply)


def windows_of(name: str) -> list[int | None]:
    """The windows of a model's attention, without a parameter of it."""
    model, windows = model_of(name), []

    def look(params) -> None:
        windows.extend(block.mixer.window for block in model.module(params).blocks if isinstance(block.mixer, MQA))

    jax.eval_shape(look, jax.eval_shape(model.init, jax.random.key(0)))
    return windows


def tokens_of(batch: int = 2, steps: int = STEPS, seed: int = 1):
    return jax.random.randint(jax.random.key(seed), (batch, steps), 0, VOCABULARY)


def full(name: str, tokens, positions=None):
    return applied(name)(params_of(name), tokens, positions)[0]


def close(actual, expected, tolerance=TOLERANCE):
    np.testing.assert_allclose(actual, expected, atol=tolerance, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_a_ragged_batch_is_its_rows(name: str) -> None:
    """Rows of 5, 17 and 30 tokens, left-padded, prefilled in chunks, then decoded: each as if it were alone."""
    lengths, rows = np.array([5, 17, STEPS]), np.asarray(tokens_of(3, STEPS + 2))
    pads = STEPS - lengths[:, None]
    positions = np.where(np.arange(STEPS)[None] < pads, -1, np.arange(STEPS)[None] - pads)
    shifted = np.stack([np.roll(row[:STEPS], STEPS - n) for row, n in zip(rows, lengths, strict=True)])
    cache, logits = model_of(name).init_cache(3, STEPS + 2), []
    for part in (slice(start, start + 10) for start in range(0, STEPS, 10)):
        given = jnp.asarray(shifted[:, part]), jnp.asarray(positions[:, part])
        out, cache = applied(name)(params_of(name), *given, cache)
        logits.append(out)
    for offset in range(2):
        following = jnp.asarray(rows[np.arange(3), lengths + offset, None])
        out, cache = applied(name)(params_of(name), following, None, cache)
        logits.append(out)
    logits = np.concatenate(logits, axis=1)
    alone = full(name, jnp.asarray(rows))  # from its first token on: what comes after a row changes nothing in it
    for row, n in enumerate(lengths):
        close(logits[row, STEPS - n :], alone[row, : n + 2])


@pytest.mark.parametrize("name", OFTEN)
def test_padding_alone_leaves_every_state_unchanged(name: str) -> None:
    """Of ours the arrays themselves, once a window is full."""
    rows, cache = tokens_of(3, STEPS), model_of(name).init_cache(3, STEPS + 2)
    for start in range(0, STEPS, 10):  # the program of the ragged batch
        positions = jnp.arange(start, start + 10)[None].repeat(3, 0)
        _, cache = applied(name)(params_of(name), rows[:, start : start + 10], positions, cache)
    _, after = applied(name)(params_of(name), rows[:, :10], jnp.full((3, 10), -1), cache)
    for before, now in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(before, now)


@pytest.mark.parametrize("name", OFTEN)
def test_documents_in_a_used_cache_are_as_if_alone(name: str) -> None:
    """Two in one call, after others: neither convolution, state nor attention reaches back past position 0."""

    def said(tokens, positions, cache):  # the program of the ragged batch
        positions = jnp.asarray(positions)[None].repeat(3, 0)
        return applied(name)(params_of(name), jnp.asarray(tokens), positions, cache)

    one, other = np.split(np.asarray(tokens_of(3, 20)), 2, axis=1)
    first, used = said(one, np.arange(10), model_of(name).init_cache(3, STEPS + 2))
    second, _ = said(other, np.arange(10), model_of(name).init_cache(3, STEPS + 2))
    both, _ = said(np.concatenate([one[:, :5], other[:, :5]], axis=1), np.tile(np.arange(5), 2), used)
    close(both, np.concatenate([first[:, :5], second[:, :5]], axis=1))


@pytest.mark.parametrize("window", [1, pytest.param(2, marks=pytest.mark.exhaustive), WINDOW])
def test_a_window_sees_itself_and_the_ones_just_before(window: int) -> None:
    """By gradients: position t sees t − window + 1 and not t − window, in training and through the cache."""
    from flax import nnx

    mixer = MQA(16, heads=4, head_dim=4, window=window, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (1, 200, 16))
    at = 150
    for cached in (False, True):

        def reach(x, cached=cached):
            if not cached:
                return mixer(x, None, None)[0][0, at].sum()
            _, cache = mixer(x[:, :at], None, mixer.init_cache(1, 200))
            return mixer(x[:, at:], None, cache)[0][0, 0].sum()

        seen = np.abs(jax.jit(jax.grad(reach))(x)[0]).sum(axis=-1) > 0
        assert np.flatnonzero(seen).tolist() == list(range(at - window + 1, at + 1))


def test_blocks_of_queries_change_nothing() -> None:
    """200 steps are four blocks of queries; one product over everything is the oracle."""
    from flax import nnx

    for window in (None, 5, 64, 100):
        mixer = MQA(16, heads=4, head_dim=4, window=window, rope=False, rngs=nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (2, 200, 16))
        q, k, v = (np.asarray(part(x), np.float64) for part in (mixer.query, mixer.key, mixer.value))
        scores = np.einsum("bqnh,bkh->bnqk", q.reshape(2, 200, 4, 4), k) / 2
        distance = np.arange(200)[:, None] - np.arange(200)[None]
        scores = np.where((distance >= 0) & (distance < (window or 200)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("bnqk,bkh->bqnh", weights / weights.sum(-1, keepdims=True), v).reshape(2, 200, 16)
        close(jax.jit(lambda x, m=mixer: m(x, None, None)[0])(x), y @ np.asarray(mixer.output.kernel[...], np.float64))


def test_rope_is_relative_and_exact_far_out() -> None:
    """The product of a query and a key depends on their distance only, also at position 2^20."""
    q, k = (jax.random.normal(jax.random.key(i), (1, 1, 1, 16)) for i in range(2))

    def product(at: int) -> float:
        turned = [rope(x, jnp.array([[place]]), 10_000.0) for x, place in ((q, at), (k, at - 37))]
        return float((turned[0] * turned[1]).sum())

    assert abs(product(2**20) - product(37)) < 5e-3
    assert abs(product(5000) - product(37)) < 1e-4


def test_a_global_cache_that_overflows_raises_or_poisons() -> None:
    from flax import nnx

    mixer = MQA(16, heads=4, head_dim=4, rngs=nnx.Rngs(0))
    x = jnp.ones((2, 29, 16))
    with pytest.raises(ValueError, match="the cache holds 10 keys and was given 29"):
        mixer(x, None, mixer.init_cache(2, 10))
    assert np.isnan(jax.jit(lambda x: mixer(x, None, mixer.init_cache(2, 10))[0])(x)).all()


def test_a_window_that_is_longer_than_the_text_needs_no_more_cache_than_the_text() -> None:
    """A prompt in one piece, in pieces and with pads, then one token, from a cache with room for it and no more."""
    from flax import nnx

    mixer = MQA(16, heads=4, head_dim=4, window=100, rngs=nnx.Rngs(0))
    x = np.asarray(jax.random.normal(jax.random.key(0), (2, 61, 16)))
    call = jax.jit(lambda x, positions, cache: mixer(x, positions, cache))
    whole, _ = call(x, None, None)
    for sizes in ((60, 1), (20, 20, 20, 1)):
        cache, start, parts = mixer.init_cache(2, 61), 0, []
        assert cache.keys.shape[1] == 61
        for size in sizes:
            y, cache = call(x[:, start : start + size], None, cache)
            parts.append(y)
            start += size
        close(np.concatenate(parts, axis=1), whole, 1e-6)
    padded = np.concatenate([np.zeros((2, 19, 16), np.float32), x[:, :41]], axis=1)
    positions = np.maximum(np.arange(60) - 19, -1)[None].repeat(2, 0)
    y, cache = call(padded, positions, mixer.init_cache(2, 61))
    close(y[:, 19:], whole[:, :41], 1e-6)
    y, _ = call(x[:, 41:], None, cache)
    close(y, whole[:, 41:], 1e-6)
    assert np.isnan(call(x[:, :60], None, mixer.init_cache(2, 30))[0]).all()


@pytest.mark.parametrize("name", every_model())
def test_the_state_is_float32_and_bounded_where_it_should_be(name: str) -> None:
    model = model_of(name)
    sizes = [sum(leaf.size for leaf in jax.tree.leaves(model.init_cache(1, length))) for length in (64, 128)]
    grows = any(window is None for window in windows_of(name))
    assert (sizes[0] == sizes[1]) is (not grows)
    cache = model.init_cache(1, 8)
    for leaf in jax.tree.leaves(cache):
        assert leaf.dtype in (jnp.float32, jnp.int32)
    has_no_state = name == "mqa_conv" or len(windows_of(name)) == len(cache)
    assert (model.states(cache) == {}) is has_no_state


@pytest.mark.parametrize("name", every_model())
def test_paper_sizes_decay_mask_and_logits_dtype(name: str) -> None:
    model = Spec.of(["task=induction_heads", f"model={name}"]).experiment.model
    params = jax.eval_shape(model.init, jax.random.key(0))
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    if name != "mamba":  # a control of its authors' size: two blocks without MLPs
        assert 230_000 <= count <= 290_000
    for path, decays in jax.tree_util.tree_leaves_with_path(model.decay_mask(params)):
        key = jax.tree_util.keystr(path)
        spared = any(word in key for word in ("scale", "bias", "table", "'decay'", "'angle'", "log_rate", "skip"))
        # RWKV-7 spares all vectors, and both maps of its adapters.
        spared |= any(word in key for word in ("shift", "removal", "replacement", "bonus")) or key.endswith(
            ("['into']", "['up']")
        )
        assert decays is not spared, key


def test_the_decay_starts_where_the_paper_says() -> None:
    """`a^c` uniform in [0.9, 0.999], gates LeCun over a block (De et al. 2024, sec. 2.4)."""
    from flax import nnx

    block = RecurrentBlock(64, width_rnn=4096, gate_blocks=64, rngs=nnx.Rngs(0))
    a_c = np.asarray(jax.nn.sigmoid(block.rglru.decay[...])) ** 8
    assert 0.9 <= a_c.min() < 0.902 and 0.997 < a_c.max() <= 0.9991
    assert abs(a_c.mean() - 0.9495) < 0.003
    assert abs(float(block.rglru.input_gate.kernel[...].std()) * 64**0.5 - 1) < 0.01


def test_the_convolution_starts_as_it_is_told() -> None:
    from flax import nnx

    usual, small = (
        RecurrentBlock(8, width_rnn=4096, gate_blocks=64, conv_init=std, rngs=nnx.Rngs(0)).conv.kernel[...]
        for std in (None, 0.05)
    )
    assert abs(float(usual.std()) - 0.5) < 0.01 and abs(float(small.std()) - 0.05) < 0.001
    np.testing.assert_allclose(usual * 0.1, small, rtol=1e-6)


def test_a_dense_block_diagonal_product_is_the_blocked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from flax import nnx

    layer = BlockDiagonalLinear(48, 6, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 3, 48))
    dense = layer(x)
    monkeypatch.setattr("evalkit.models.layers.modules.DENSE_UP_TO", 0)
    close(layer(x), dense, 1e-6)


def test_the_gate_of_an_mlp_goes_through_gelu_and_the_other_branch_does_not() -> None:
    from flax import nnx

    mlp = GatedMLP(6, 9, rngs=nnx.Rngs(0))
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    gate, up, down = (np.asarray(part.kernel[...], np.float64) for part in (mlp.gate, mlp.up, mlp.down))
    opened = x @ gate
    gelu = 0.5 * opened * (1 + np.tanh((2 / np.pi) ** 0.5 * (opened + 0.044715 * opened**3)))
    close(jax.jit(lambda x: mlp(x))(x), (gelu * (x @ up)) @ down, 1e-5)


def test_gelu_times_is_jax_gelu_times() -> None:
    """In float64, where the compiler's own approximation of tanh does not blur the comparison."""
    with jax.enable_x64():
        keys = jax.random.split(jax.random.key(0), 3)
        x, y, dz = (jax.random.normal(key, (64,), jnp.float64) * 3 for key in keys)
        wanted, pull = jax.vjp(lambda x, y: jax.nn.gelu(x) * y, x, y)
        got, own = jax.vjp(gelu_times, x, y)
        for one, other in zip((got, *own(dz)), (wanted, *pull(dz)), strict=True):
            close(one, other, 1e-12)


@pytest.mark.parametrize("documents", [1, 2])
@pytest.mark.parametrize("in_cache", [2**18, 1])
def test_attention_and_its_gradient_are_the_plain_softmax(
    documents: int, in_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, folded heads, one sequence after the other and the gradient that takes the weights again, against the
    textbook in float64; every sequence with marks of its own, too."""
    monkeypatch.setattr("evalkit.models.mixers.attention.IN_CACHE", in_cache)
    batch, steps, heads, width, window = 2, 150, 2, 4, 40
    rng = np.random.default_rng(0)
    q, dy = (jnp.asarray(rng.normal(size=(batch, steps, heads, width)), jnp.float32) for _ in range(2))
    k, v = (jnp.asarray(rng.normal(size=(batch, steps, width)), jnp.float32) for _ in range(2))
    where = jnp.arange(steps)[None]
    marks, segments = Marks(where, where, None, None), jnp.zeros((1, steps), jnp.int32)
    if documents == 2:
        segments = jnp.stack([where[0] >= 30, where[0] >= 71]).astype(jnp.int32)
        marks = Marks(where, where, segments, segments)

    def plain(q, k, v):
        distance = where[0][:, None] - where[0][None]
        seen = ((distance >= 0) & (distance < window))[None] & (segments[:, :, None] == segments[:, None])
        scores = jnp.where(seen[:, None], jnp.einsum("bqnh,bsh->bnqs", q, k) / 2, -jnp.inf)
        return jnp.einsum("bnqs,bsh->bqnh", jax.nn.softmax(scores, axis=-1), v)

    def both(function, q, k, v, dy):
        value, pull = jax.vjp(function, q, k, v)
        return value, *pull(dy)

    with jax.enable_x64():
        wanted = jax.jit(partial(both, plain))(*(np.float64(x) for x in (q, k, v, dy)))
    got = jax.jit(partial(both, lambda q, k, v: attend(q, k, v, marks, window, aligned=True)))(q, k, v, dy)
    for one, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stored", [150, *(pytest.param(stored, marks=pytest.mark.exhaustive) for stored in (128, 200))]
)
def test_blocks_of_queries_together_give_what_each_gives_by_itself(stored: int) -> None:
    """On an accelerator all blocks are one: bands that reach before the first key, and keys before the first band."""
    batch, steps, heads, width, window = 2, 128, 2, 4, 40
    rng = np.random.default_rng(0)
    q, dy = (jnp.asarray(rng.normal(size=(batch, steps, heads, width)), jnp.float32) for _ in range(2))
    k, v = (jnp.asarray(rng.normal(size=(batch, stored, width)), jnp.float32) for _ in range(2))
    where = jnp.arange(stored)[None]
    segments = jnp.stack([where[0] >= 30, where[0] >= stored - 50]).astype(jnp.int32)
    marks = Marks(where[:, -steps:], where, segments[:, -steps:], segments)

    @partial(jax.jit, static_argnums=0)
    def both(function, *arrays):
        value, pull = jax.vjp(lambda q, k, v: function(q, k, v, marks), *arrays)
        return value, *pull(dy)

    together = partial(attention._all_blocks_together, window=window, size=64)
    one_by_one = partial(attention._one_block_after_another, window=window, aligned=True)
    for one, other in zip(both(together, q, k, v), both(one_by_one, q, k, v), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_filling_cache_is_attended_like_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of keys with the last one cut short, empty ones left out, against all keys at once."""
    model, params = model_of("mqa"), params_of("mqa")
    tokens = jnp.concatenate([tokens_of()] * 3, axis=1)
    cache = model.init_cache(tokens.shape[0], 2 * tokens.shape[1] + 3)
    whole = full("mqa", tokens)
    monkeypatch.setattr("evalkit.models.mixers.attention.KEYS_AT_A_TIME", 16)
    half = tokens.shape[1] // 2
    apply = jax.jit(lambda *arguments: model.apply(*arguments))  # traced again, with the smaller blocks
    first, cache = apply(params, tokens[:, :half], None, cache)
    second, _ = apply(params, tokens[:, half:], None, cache)
    close(np.concatenate([first, second], axis=1), whole, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_bfloat16_gradients_are_finite_and_logits_float32(name: str) -> None:
    shrunk = [*overrides_of(name), "model.dtype=bfloat16"]
    model = Spec.of(["task=induction_heads", f"model={name}", *shrunk]).experiment.model

    rows = tokens_of(3, STEPS + 2)  # as in the ragged batch

    def loss(params):
        logits, _ = model.apply(params, rows)
        assert logits.dtype == jnp.float32
        return (logits**2).mean(), logits

    gradients, logits = jax.jit(jax.grad(loss, has_aux=True))(params_of(name))
    assert all(np.isfinite(leaf).all() for leaf in jax.device_get(jax.tree.leaves(gradients)))
    close(logits, full(name, rows), 0.2)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"pattern": ["b"]}, "names \\['b'\\]; mixers given: \\['a'\\]"),
        ({"pattern": []}, "names nothing"),
        ({"width": 0}, "width=0; allowed: 1 or more"),
        ({"depth": 0}, "depth=0; allowed: 1 or more, or null"),
        ({"dtype": "float16"}, "allowed: float32, bfloat16"),
        ({"mlp_expansion": -1}, "mlp_expansion=-1 makes an MLP of width -16"),
        ({"mlp_expansion": 1.3}, "an MLP of width 20.8; use a whole one"),
        ({"logits_soft_cap": 0.0}, "logits_soft_cap=0.0; allowed: above 0, or null"),
    ],
)
def test_an_impossible_model_is_refused(sizes: dict, words: str) -> None:
    def attention(width, rngs):
        return MQA(width, heads=4, head_dim=4, rngs=rngs)

    given = {"vocab_size": 16, "width": 16, "pattern": ["a"], "mixers": {"a": attention}, **sizes}
    with pytest.raises(ValueError, match=words):
        build(**given)


@pytest.mark.parametrize(("depth", "windows"), [(None, [1, 2]), (1, [1]), (2, [1, 2]), (5, [1, 2, 1, 2, 1])])
def test_a_pattern_begins_again_until_there_are_as_many_blocks_as_depth(depth: int | None, windows: list[int]) -> None:
    mixers = {name: partial(MQA, heads=1, head_dim=4, window=window) for name, window in (("a", 1), ("b", 2))}
    model = build(vocab_size=16, width=4, pattern="ab", depth=depth, mixers=mixers)
    assert [cache.keys.shape[1] for cache in jax.eval_shape(lambda: model.init_cache(1, 9))] == windows


def test_parameters_are_drawn_with_flaxs_keys_and_no_tracer_is_asked_where_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Flax's own streams ask at each key, for which JAX reads all that was traced before."""
    tracers: list[jax.core.Tracer] = []

    class Asking(MQA):
        def __init__(self, width: int, *, rngs: nnx.Rngs):
            super().__init__(width, heads=1, head_dim=8, window=4, rngs=rngs)
            keys = [rngs(), rngs.params(), rngs.anything(), rngs.default.fork()(), rngs()]
            self.seen = nnx.Param(jnp.stack([jax.random.bits(key) for key in keys]))

    def asked(tracer: jax.core.Tracer) -> None:
        tracers.append(tracer)
        raise AttributeError

    flaxs = lm.LanguageModel(
        vocab_size=8,
        width=8,
        pattern="aa",
        mixers={"a": Asking},
        mlp_width=24,
        mlp_bias=False,
        embedding_scale=None,
        logits_soft_cap=None,
        dtype="float32",
        remat=False,
        rngs=nnx.Rngs(jax.random.key(5)),
    )
    monkeypatch.setattr(jax.core.Tracer, "sharding", property(asked))
    ours = build(vocab_size=8, width=8, pattern="aa", mixers={"a": Asking}).init(jax.random.key(5))
    assert tracers == []
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(nnx.state(flaxs, nnx.Param)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)  # theirs is not compiled


def test_a_mixer_that_is_not_recurrent_is_one_part_with_its_window() -> None:
    model = model_of("griffin")
    names = {part.name: part.times for part in model.parts(params_of("griffin"), 1, 8)}
    assert names["MQA, window 8"] == 1 and {"scan", "gates", "conv", "linear maps", "head"} <= set(names)


@pytest.mark.parametrize("spoilt", [lambda y: y[..., :1], lambda y: y.astype(jnp.float16)], ids=["width", "dtype"])
def test_a_mixer_gives_what_can_be_added_to_its_input(spoilt) -> None:
    """A width of 1 would be added to every channel, and another dtype would change that of all blocks after it."""

    class Spoilt(MQA):
        def __call__(self, x, positions, cache):
            y, cache = super().__call__(x, positions, cache)
            return spoilt(y), cache

    mixer = partial(Spoilt, heads=1, head_dim=8)
    model = build(vocab_size=VOCABULARY, width=8, pattern="a", mixers={"a": mixer})
    with pytest.raises(
        ValueError, match=r"Spoilt gives .*; it is added to what it was given, so give float32 \(2, 30, 8\)"
    ):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), tokens_of())


def test_another_mixer_with_the_parameters_of_attention_is_not_divided_like_it() -> None:
    """Grouped queries have two keys a layer; the rule of multi-query attention would give each device all of both."""

    class Grouped(nnx.Module):
        window = None

        def __init__(self, width, *, rngs):
            self.query, self.output = (nnx.Linear(width, width, rngs=rngs) for _ in range(2))
            self.key, self.value = (nnx.Linear(width, 2, rngs=rngs) for _ in range(2))

        def __call__(self, x, positions, cache):
            return self.output(self.query(x)), cache

        def init_cache(self, batch, length):
            return jnp.zeros((batch, 0))

    model = build(vocab_size=VOCABULARY, width=8, pattern="a", mixers={"a": Grouped})
    with pytest.raises(ValueError, match=r"no rule divides .*\(Grouped\) over the model axis; give model: 1"):
        model.division(2)
    assert model_of("griffin").division(2)


@pytest.mark.parametrize("unit_reset", [False, True])
def test_the_states_that_decay_are_those_of_the_model(unit_reset: bool) -> None:
    """With `unit_reset` the first token enters unscaled, in the states that `eval=recall` looks at as well."""
    block = RecurrentBlock(16, width_rnn=16, gate_blocks=4, unit_reset=unit_reset, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (2, 3, 16))
    _, cache = block(x, None, block.init_cache(2, 0))
    np.testing.assert_allclose(block.decays(x)[1][:, -1], cache.h, rtol=1e-5)
