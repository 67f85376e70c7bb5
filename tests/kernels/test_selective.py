"""The selective recurrence against float64 NumPy, and its two forms against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.kernels import selective_scan
from evalkit.kernels.selective import IMPLEMENTATIONS

BATCH, STEPS, CHANNELS, STATES = 3, 75, 6, 4


def inputs(dtype: type = np.float32, steps: int = STEPS) -> tuple[list[np.ndarray], np.ndarray]:
    """u, delta, rate, into, out and h0, and where the state is reset."""
    rng = np.random.default_rng(0)
    u, delta = rng.normal(size=(2, BATCH, steps, CHANNELS))
    rate = np.exp(rng.normal(size=(CHANNELS, STATES)))
    into, out = rng.normal(size=(2, BATCH, steps, STATES))
    h0 = rng.normal(size=(BATCH, CHANNELS, STATES))
    reset = rng.uniform(size=(BATCH, steps)) < 0.05
    reset[0, 0] = True
    given = [u, np.abs(delta), rate, into, out, h0]
    return [one.astype(dtype) for one in given], reset


def oracle(given: list[np.ndarray], reset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    u, delta, rate, into, out, h = (np.asarray(one, np.float64) for one in given)
    y = np.zeros(u.shape)
    for t in range(u.shape[1]):
        h = np.where(reset[:, t, None, None], 0, h)
        h = np.exp(-delta[:, t, :, None] * rate) * h + (delta * u)[:, t, :, None] * into[:, t, None]
        y[:, t] = (h * out[:, t, None]).sum(-1)
    return y, h


def run(given: list[np.ndarray], reset: np.ndarray, way: str):
    """y, the last state, and the gradients of a loss that weighs each number otherwise."""

    def called(*given):
        return selective_scan(*given, reset=jnp.asarray(reset), implementation=way)

    @jax.jit
    def both(*given):
        found, pull = jax.vjp(called, *given)
        return found, pull(jax.tree.map(lambda one: jnp.cos(jnp.arange(one.size).reshape(one.shape)), found))

    return both(*map(jnp.asarray, given))


@pytest.mark.parametrize("way", IMPLEMENTATIONS)
def test_values_match_float64(way: str) -> None:
    given, reset = inputs()
    found, _ = run(given, reset, way)
    for got, wanted in zip(found, oracle(given, reset), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("steps", [3, 32, STEPS])  # no loop; whole pieces; a piece that is not full
def test_both_forms_have_the_same_values_and_gradients(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.kernels.matrix.loop.SMALL", 2 * CHANNELS * STATES)  # two groups, one of them not full
    with jax.enable_x64():
        given, reset = inputs(np.float64, steps)
        by_loop, by_scan = (jax.tree.leaves(run(given, reset, way)) for way in ("loop", "scan"))
    for got, wanted in zip(by_loop, by_scan, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize(("way", "large"), [("auto", False), ("scan", True)])
def test_on_a_cpu_no_array_has_a_state_for_every_step(way: str, large: bool) -> None:
    given, reset = inputs()
    program = jax.jit(lambda *given: selective_scan(*given, reset=jnp.asarray(reset), implementation=way)[0].sum())
    text = program.lower(*given).compile().as_text()
    shapes = f"[{BATCH},{STEPS},{CHANNELS * STATES}]", f"[{BATCH},{STEPS},{CHANNELS},{STATES}]"
    assert any(shape in text for shape in shapes) == large


def test_a_token_of_a_batch_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.kernels.matrix.loop.SMALL", CHANNELS * STATES)  # a group each, were there groups

    def program(steps: int) -> str:
        given, _ = inputs(steps=steps)
        return str(jax.make_jaxpr(lambda *given: selective_scan(*given, implementation="loop"))(*given))

    assert "scan" not in program(1) and "scan" in program(STEPS)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    given, _ = inputs()
    with pytest.raises(ValueError, match="implementation='fast'; allowed: auto, loop, scan"):
        selective_scan(*map(jnp.asarray, given), implementation="fast")
    with pytest.raises(ValueError, match="at least one step"):
        selective_scan(*(jnp.zeros(shape) for shape in ((1, 0, 2), (1, 0, 2), (2, 3), (1, 0, 3), (1, 0, 3))))
