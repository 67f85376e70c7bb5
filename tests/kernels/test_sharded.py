"""The scan over a time-sharded array is the scan over the whole of it, on 4 CPU devices of a process of its own."""

import itertools
import re
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from evalkit.kernels import linear_scan, sharded_linear_scan
from support import tiny

DEVICES = 4
BATCH, STEPS, WIDTH = 2, 24, 5
TOLERANCE = 1e-6  # both sides are within half of it of float64

Measured = tuple[dict[str, list[float]], list[int]]

# name: mesh axes, layout
LAYOUTS = {
    "1 shard": ({"time": 1}, P(None, "time")),
    "2 shards": ({"time": 2}, P(None, "time")),
    "4 shards": ({"time": 4}, P(None, "time")),
    "batch too": ({"data": 2, "time": 2}, P("data", "time", None)),
    "channels too": ({"time": 4, "model": 1}, P(None, "time", "model")),
}


def mesh_of(axes: dict[str, int]) -> Mesh:
    count = int(np.prod(list(axes.values())))
    return Mesh(np.array(jax.devices()[:count]).reshape(*axes.values()), tuple(axes))


def inputs() -> tuple[jax.Array, ...]:
    """x, a, h0, reset and the cotangents of both results; decays from 0 to 1, some so small that products underflow."""
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(BATCH, STEPS, WIDTH)).astype(np.float32) for _ in range(2))
    a = rng.uniform(0.5, 1, size=x.shape).astype(np.float32)
    a[..., 0], a[..., 1], a[..., 2] = 1.0, 1e-30, rng.choice([0.0, 1.0], size=x.shape[:2])
    h0, dlast = (rng.normal(size=(BATCH, WIDTH)).astype(np.float32) for _ in range(2))
    reset = np.zeros((BATCH, STEPS), bool)
    reset[0, [0, 6, 7, 11]], reset[1, -1] = True, True  # the first and the last step of a shard, and one after another
    return tuple(map(jnp.asarray, (x, a, h0, reset, dy, dlast)))


def apart(found: list[jax.Array], wanted: list[jax.Array]) -> list[float]:
    """The largest difference of each pair, relative to the largest value."""
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(found, wanted, strict=True)]
    return [float(np.abs(one - other).max() / max(np.abs(other).max(), 1)) for one, other in pairs]


def results(scan, x, a, h0, dy, dlast) -> list[jax.Array]:
    """Both results and all three gradients."""

    def all_of_it(x, a, h0, dy, dlast):
        value, pull = jax.vjp(scan, x, a, h0)
        return [*value, *pull((dy, dlast))]

    return jax.jit(all_of_it)(x, a, h0, dy, dlast)


def cases(every: bool) -> list[tuple[str, bool, bool]]:
    """(layout, reverse, with resets): both directions with and without resets on four shards, every layout once."""
    product = list(itertools.product(LAYOUTS, (False, True), (False, True)))
    others = {
        "1 shard": (False, True),
        "2 shards": (True, True),
        "batch too": (True, True),
        "channels too": (False, True),
    }
    return [case for case in product if every or others.get(case[0], case[1:]) == case[1:]]


def largest_errors(every: bool) -> dict[str, list[float]]:
    """By layout, direction and with or without resets: how far each result is from the unsharded one."""
    x, a, h0, reset, dy, dlast = inputs()

    @lru_cache
    def wanted(reverse: bool, resets: bool) -> list[jax.Array]:
        def whole(x, a, h0):
            return linear_scan(x, a, h0, reset=reset if resets else None, reverse=reverse)

        return results(whole, x, a, h0, dy, dlast)

    errors = {}
    for name, reverse, resets in cases(every):
        axes, spec = LAYOUTS[name]
        mesh, marks = mesh_of(axes), reset if resets else None

        def sharded(x, a, h0, mesh=mesh, spec=spec, reverse=reverse, marks=marks):
            return sharded_linear_scan(x, a, h0, mesh=mesh, spec=spec, reset=marks, reverse=reverse)

        lying = [jax.device_put(value, NamedSharding(mesh, spec)) for value in (x, a, dy)]
        found = results(sharded, *lying[:2], h0, lying[2], dlast)
        assert found[0].sharding.is_equivalent_to(NamedSharding(mesh, spec), 3), "h does not lie as x does"
        errors[f"{name}, {'reverse' if reverse else 'forward'}, {'resets' if resets else 'no resets'}"] = apart(
            found, wanted(reverse, resets)
        )
    return errors


def gated_errors() -> list[float]:
    """The same for an RG-LRU on four shards: eqs. 1 to 4 on sharded arrays, gradients of the gates and of the rate."""
    x, a, h0, reset, dy, dlast = inputs()
    recurrence, input_gate, rate = 4 * a - 2, -x, -jnp.linspace(0.01, 2, WIDTH)
    mesh, spec = mesh_of({"time": 4}), P(None, "time")

    def unit(scan, x, recurrence, input_gate, rate, h0):
        log_a = jax.nn.sigmoid(recurrence) * rate[None, None]
        return scan(jnp.sqrt(-jnp.expm1(2 * log_a)) * jax.nn.sigmoid(input_gate) * x, jnp.exp(log_a), h0)

    def sharded(x, a, h0):
        return sharded_linear_scan(x, a, h0, mesh=mesh, spec=spec, reset=reset)

    def whole(x, a, h0):
        return linear_scan(x, a, h0, reset=reset)

    def all_of_it(scan, *arrays):
        value, pull = jax.vjp(lambda *given: unit(scan, *given), *arrays)
        return [*value, *pull((dy, dlast))]

    lying = [jax.device_put(value, NamedSharding(mesh, spec)) for value in (x, recurrence, input_gate)]
    found = jax.jit(lambda *arrays: all_of_it(sharded, *arrays))(*lying, rate, h0)
    wanted = jax.jit(lambda *arrays: all_of_it(whole, *arrays))(x, recurrence, input_gate, rate, h0)
    return apart(found, wanted)


def exchanged() -> list[int]:
    """How many numbers each message between devices holds, values and gradients of long sequences on four shards."""
    mesh, spec = mesh_of({"time": 4}), P(None, "time")

    def all_of_it(x, a, h0):
        value, pull = jax.vjp(lambda *given: sharded_linear_scan(*given, mesh=mesh, spec=spec), x, a, h0)
        return value, pull(value)

    long = jax.ShapeDtypeStruct((BATCH, 4096, WIDTH), jnp.float32, sharding=NamedSharding(mesh, spec))
    state = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P()))
    program = jax.jit(all_of_it).lower(long, long, state).compile().as_text()
    shapes = re.findall(r"= f32\[([\d,]+)\]\S* (?:all-|collective-|reduce-scatter)[\w-]*\(", program)
    return [int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes]


PROGRAM = f"""
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", {DEVICES})
sys.path[:0] = ["tests", "tests/kernels"]
import test_sharded
assert jax.device_count() == {DEVICES}
every = sys.argv[1] == "every case"
errors = {{**test_sharded.largest_errors(every), "gated": test_sharded.gated_errors()}}
print(json.dumps([errors, test_sharded.exchanged()]))
"""


@pytest.fixture(
    scope="module", params=["each layout", pytest.param("every case", marks=pytest.mark.exhaustive)], ids=str
)
def measured(request: pytest.FixtureRequest) -> Measured:
    errors, sizes = tiny.told_by(PROGRAM, request.param)
    assert len(errors) == len(cases(request.param == "every case")) + 1
    return errors, sizes


@pytest.mark.slow
def test_every_layout_gives_the_unsharded_values_and_gradients(
    measured: Measured,
) -> None:
    """h, the last state and the gradients of x, a and h0; of the gated unit also those of its gates and its rate."""
    errors, _ = measured
    assert {name.split(",")[0] for name in errors} == {*LAYOUTS, "gated"}
    assert all(max(found) < TOLERANCE for found in errors.values()), errors


@pytest.mark.slow  # by the same process
def test_only_states_are_exchanged(measured: Measured) -> None:
    """Messages are of one state a shard, or a neighbour's edge: nothing grows with the 4096 steps."""
    _, sizes = measured
    assert len(sizes) >= 4 and max(sizes) <= DEVICES * BATCH * WIDTH, sizes


def test_one_device_is_a_mesh_too() -> None:
    """Outside `jit`, and without an initial state."""
    x, a, _, reset, *_ = inputs()
    mesh = mesh_of({"time": 1})
    found = sharded_linear_scan(x, a, mesh=mesh, spec=P(None, "time"), reset=reset)
    for one, other in zip(found, jax.jit(linear_scan)(x, a, reset=reset), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE)


def test_bfloat16_is_summed_in_float32() -> None:
    ones = jnp.ones((1, 4096, 1), jnp.bfloat16)
    scan = jax.jit(partial(sharded_linear_scan, mesh=mesh_of({"time": 1}), spec=P(None, "time")))
    y, last = scan(ones, ones)
    assert (y.dtype, last.dtype, float(last[0, 0])) == (jnp.bfloat16, jnp.float32, 4096.0)


@pytest.mark.parametrize(
    ("spec", "steps", "words"),
    [
        (
            P(None, "time"),
            6,
            "6 steps do not divide into the 4 shards of mesh axis 'time'; pad time to a multiple",
        ),
        (P(None, "time"), 0, "0 steps"),
        (P("time"), 8, "shards time, its second entry, over None; allowed: data, time"),
        (P(None, "tme"), 8, "over 'tme'; allowed: data, time"),
        (P(None, ("data", "time")), 8, "allowed: data, time"),
    ],
)
def test_what_cannot_be_sharded_is_refused(spec: P, steps: int, words: str) -> None:
    """Before anything runs, so the devices of the mesh need not be there."""
    one = jax.devices()[0]
    mesh = Mesh(np.array([one] * 4).reshape(1, 4), ("data", "time"))
    x = jnp.zeros((1, steps, 3))
    with pytest.raises(ValueError, match="^[^\n]*" + words.replace("(", "\\(")):
        sharded_linear_scan(x, x, mesh=mesh, spec=spec)
