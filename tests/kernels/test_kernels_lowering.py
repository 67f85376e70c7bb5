"""Every kernel lowers for the platform it is for, here where that platform is not."""

import itertools
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from evalkit.kernels import cglru, linear_scan, rglru
from evalkit.kernels import dispatch as choice

# What JAX 0.11 says of the kernels that it still lowers.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")

CALL = {"cuda": "__gpu$xla.gpu.triton", "tpu": "tpu_custom_call"}
DEVICE = {
    "cuda": AbstractDevice("NVIDIA H200", 132, platform="gpu"),
    "tpu": AbstractDevice("TPU v5e", 1, platform="tpu"),
}


@pytest.fixture(autouse=True, scope="module")
def not_on_a_cpu_alone():
    """A process that has a CPU alone traces nothing for other platforms; what it traced before must not be found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        jax.clear_caches()
        yield
    jax.clear_caches()


def arrays(batch, steps, width, dtype):
    """Arguments of the RG-LRU and resets, as shapes."""
    x, h0 = jax.ShapeDtypeStruct((batch, steps, width), dtype), jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return x, x, x, jax.ShapeDtypeStruct((width,), jnp.float32), h0, jax.ShapeDtypeStruct((batch, steps), jnp.bool)


def lowered(function, platform, *arguments):
    """The program that `platform` would compile; newer JAX asks which device it is for."""
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=DEVICE[platform])):
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def loss(x, recurrence, input_gate, rate, h0, reset, implementation="auto"):
    """Both operations, with all that the kernels take."""
    h, last = rglru(x, recurrence, input_gate, rate, h0, reset=reset, implementation=implementation)
    plain, end = linear_scan(h, jax.nn.sigmoid(input_gate), last, reset=reset, implementation=implementation)
    return plain.astype(jnp.float32).sum() + end.sum()


FLOAT32, BFLOAT16 = (jnp.float32,), (jnp.bfloat16,)
BOTH = (*FLOAT32, *BFLOAT16)


def cases(few):
    """(platform, shape, dtype): a platform's `few`, by shape, in every run; the others only if asked for."""
    shapes = list(dict.fromkeys(shape for of_platform in few.values() for shape in of_platform))
    return [
        pytest.param(*case, marks=[pytest.mark.exhaustive] * (case[2] not in few[case[0]].get(case[1], ())))
        for case in itertools.product(CALL, shapes, BOTH)
    ]


# The dearest to lower is the largest: on CUDA cut into chunks as the one of 300 steps is, on a TPU as in COMPLEX.
REAL = {
    "cuda": {(2, 300, 200): FLOAT32, (3, 7, 3): BFLOAT16},
    "tpu": {(8, 2048, 1024): (), (2, 300, 200): FLOAT32, (1, 1, 1): BFLOAT16},
}


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "shape", "dtype"), cases(REAL))
def test_both_operations_and_their_gradients_lower(platform, dtype, shape):
    text = lowered(jax.grad(loss, argnums=range(5)), platform, *arrays(*shape, dtype))
    chunked = platform == "cuda" and shape[1] > 256  # a kernel for the chunks and one over them before each
    assert text.count(f"@{CALL[platform]}") + text.count(f'@"{CALL[platform]}"') >= (8 if chunked else 4)


def complex_arrays(batch, steps, channels, dtype):
    """Arguments of the CG-LRU and resets, as shapes."""
    x, gate, _, rate, _, reset = arrays(batch, steps, channels, dtype)
    x = jax.ShapeDtypeStruct((batch, steps, 2 * channels), dtype)
    return x, gate, gate, rate, rate, jax.ShapeDtypeStruct((batch, 2 * channels), jnp.float32), reset


def complex_loss(x, recurrence, input_gate, rate, angle, h0, reset, implementation="auto"):
    h, last = cglru(x, recurrence, input_gate, rate, angle, h0, reset=reset, implementation=implementation)
    return h.astype(jnp.float32).sum() + last.sum()


COMPLEX = {
    "cuda": {(3, 7, 3): FLOAT32},
    "tpu": {(8, 2048, 512): FLOAT32, (2, 300, 100): BFLOAT16},
}


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "shape", "dtype"), cases(COMPLEX))
def test_the_complex_unit_and_its_gradient_lower(platform, dtype, shape):
    text = lowered(jax.grad(complex_loss, argnums=range(6)), platform, *complex_arrays(*shape, dtype))
    chunked = platform == "cuda" and shape[1] > 256
    assert text.count(f"@{CALL[platform]}") + text.count(f'@"{CALL[platform]}"') >= (4 if chunked else 2)
    assert "stablehlo.while" not in text


def test_mosaic_gpu_says_that_it_does_not_take_the_complex_unit():
    unit = partial(complex_loss, implementation="mosaic_gpu")
    with pytest.raises(ValueError, match="takes the real unit, not the complex one; use 'triton'"):
        lowered(unit, "cuda", *complex_arrays(2, 300, 128, jnp.float32))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_mosaic_gpu_lowers_where_the_width_allows_and_says_so_where_not(dtype):
    gradient = jax.grad(partial(loss, implementation="mosaic_gpu"), argnums=range(5))
    assert lowered(gradient, "cuda", *arrays(2, 300, 256, dtype)).count("@mosaic_gpu") >= 4
    with pytest.raises(ValueError, match="widths that are multiples of 128, not 200; use 'triton'"):
        lowered(gradient, "cuda", *arrays(2, 300, 200, dtype))


@pytest.mark.parametrize(("batch", "steps", "width"), [(8, 32, 4096), (8, 48, 4096), (8, 32, 4000), (4, 32, 4096)])
def test_auto_is_mosaic_on_hopper_for_large_arrays_without_resets_alone(monkeypatch, batch, steps, width):
    monkeypatch.setattr(choice, "_on_hopper", lambda: True)
    x, *_, reset = arrays(batch, steps, width, jnp.bfloat16)
    is_large = (batch, steps, width) == (8, 32, 4096)
    assert ("mosaic_gpu" in lowered(linear_scan, "cuda", x, x)) == is_large
    if is_large:
        assert "mosaic_gpu" not in lowered(lambda x, reset: rglru(x, x, x, x[0, 0], reset=reset), "cuda", x, reset)
        monkeypatch.undo()
        jax.clear_caches()
        assert "mosaic_gpu" not in lowered(linear_scan, "cuda", x, x)


@pytest.mark.parametrize(("capability", "takes"), [("7.5", False), ("8.0", True), ("12.0", True), ("gfx942", True)])
def test_a_gpu_from_before_ampere_gets_no_triton(monkeypatch: pytest.MonkeyPatch, capability: str, takes: bool) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(compute_capability=capability)])
    assert (choice._of_nvidia(None) is not None) is takes


@pytest.mark.parametrize("platform", CALL)
def test_they_lower_without_resets_under_vmap_and_reversed(platform):
    x, _, _, rate, h0, _ = arrays(2, 100, 64, jnp.float32)

    def states(x, rate, h0):
        h, last = jax.vmap(lambda x: rglru(x, x, x, rate, h0))(jnp.stack([x, x]))
        return linear_scan(h[0], h[1], last[0], reverse=True)[0].sum()

    text = lowered(jax.grad(states), platform, x, rate, h0)
    assert CALL[platform] in text and "stablehlo.while" not in text


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_float64_is_served_without_a_kernel(platform):
    with jax.enable_x64():
        x = jax.ShapeDtypeStruct((2, 5, 3), jnp.float64)
        text = jax.jit(lambda x, a: linear_scan(x, a)).trace(x, x).lower(lowering_platforms=(platform,)).as_text()
    assert "custom_call" not in text and "f64" in text


def test_a_program_for_a_cpu_has_no_kernel_where_there_is_a_gpu():
    text = jax.jit(loss).trace(*arrays(2, 9, 4, jnp.float32)).lower(lowering_platforms=("cpu",)).as_text()
    assert "custom_call" not in text and "while" in text


def test_a_process_of_a_cpu_alone_traces_no_kernel(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    text = str(jax.make_jaxpr(loss)(*arrays(2, 10, 4, jnp.float32)))
    assert "pallas_call" not in text and "platform_index" not in text


@pytest.mark.parametrize(("part", "name", "platform"), [("triton", "triton", "cuda"), ("tpu", "mosaic_tpu", "tpu")])
def test_a_jax_without_a_part_of_pallas_has_the_scan_in_place_of_its_kernel(part, name, platform, monkeypatch):
    """JAX has deprecated Pallas' Triton: where it is gone, a run goes on without it, on other platforms as well."""
    monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{part}", None)
    monkeypatch.delattr(pallas, part, raising=False)
    monkeypatch.delitem(sys.modules, f"evalkit.kernels.{name}", raising=False)
    given = arrays(2, 9, 3, jnp.float32)
    assert CALL[platform] not in lowered(partial(loss), platform, *given)
    drawn = [jnp.full(one.shape, -1).astype(one.dtype) for one in given]
    assert jnp.isfinite(jax.jit(lambda *given: loss(*given))(*drawn))
