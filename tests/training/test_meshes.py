"""A model divided over a mesh trains as on one device; its devices keep and tell what ZeRO and Megatron say.

What needs eight devices is measured by a process of its own, in which CPU devices stand in for accelerators.
"""

import importlib.util
import re
import tempfile
from collections import Counter
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evalkit.configuration import experiment as config
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.models import build
from evalkit.models.layers import Division, Linear, into, out_of, scanned
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.parallel.layouts import mesh
from evalkit.parallel.layouts.mesh import Sizes, refuse_undivided
from evalkit.training import finite
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.memory import bytes_a_device
from evalkit.training.settings import Training
from evalkit.training.state import Sums
from evalkit.training.trainer import Trainer
from support import tiny

DEVICES = 8
MESHES = [(8, 1), (4, 2), (2, 4), (1, 8)]
FAMILIES = {"hawk": "rr", "griffin": "ra", "mqa": "aa"}
BATCH, LENGTH, WIDTH = 8, 12, 16
PRECISIONS = {"float64": (50, 1e-9), "float32": (10, 1e-5)}
"""Steps, and how far the losses may be from one device's, relative to them."""


@cache
def parts(pattern: str, dtype: str) -> tuple[Any, Any]:
    """A task, and a tiny model with every bias; eight heads, and gates of eight blocks."""
    mixers = {
        "r": partial(RecurrentBlock, width_rnn=WIDTH, gate_blocks=8, bias=True),
        "a": partial(MQA, heads=8, head_dim=2, window=6, output_bias=True),
    }
    task = config.build_task("induction_heads", [f"length={LENGTH}"])
    sizes = {"vocab_size": task.vocab_size, "width": WIDTH, "mlp_expansion": 2, "mlp_bias": True}
    return task, build(pattern=pattern, mixers=mixers, dtype=dtype, **sizes)


def trainer(pattern: str, mesh: Any, dtype: str = "float32", **settings: Any) -> Trainer:
    given = {"steps": 50, "batch_size": BATCH, "learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1}
    given |= {"clip": 0.5, "log_every": 1, "eval_every": 1, "checkpoint_every": 1, "microbatch": 1}
    return Trainer(*parts(pattern, dtype), Training(**(given | settings)), [0], mesh)


def on_one_device(pattern: str, dtype: str) -> Trainer:
    """The program of `mesh=auto`, on one of the devices."""
    alone = trainer(pattern, "auto", dtype)
    alone.placement.__dict__["mesh"] = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    return alone


def losses(run: Trainer, state: Any, steps: int) -> tuple[Any, list[float]]:
    """The state after so many steps, and the loss of each."""
    stage, found = run.training.stages(run.task.length)[-1], []
    for _ in range(steps):
        state, sums = run.advance(state, stage, 1)
        found.append(float(sums.loss[0]))
    return state, found


# Newer versions of XLA write the axes themselves.
GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|mesh\[.*?\] \{(.*?)\})")


def messages(run: Trainer, program: str | None) -> dict[str, int]:
    """How many messages a compiled program has, by kind, the axis of those who speak, and the way they go."""
    assert run.placement.sizes is not None
    everyone = np.arange(DEVICES).reshape(run.placement.sizes)
    axes = {",".join(map(str, group)): axis for axis, group in (("data", everyone[:, 0]), ("model", everyone[0]))}
    axes |= {"data": "data", "model": "model"}
    found: Counter[str] = Counter()
    assert program is not None
    for line in program.splitlines():
        said = re.search(
            r"= (\S+|\(.*?\)) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", line
        )
        if said is None:
            continue
        groups = GROUPS.search(line)
        assert groups is not None, line
        axis = axes.get(groups[1] or groups[2].strip("'"), "all")
        way = " back" if "transpose(jvp" in line else " forward" if "jvp" in line else ""
        scalars = all(shape == "f32[]" or shape == "f64[]" for shape in re.findall(r"[fs]\d+\[[\d,]*\]", said[1]))
        found[f"{said[2]} over {axis}{way}{', scalars' if scalars else ''}"] += 1
    return dict(found)


def told(run: Trainer) -> dict[str, int]:
    """The messages of a program for the devices of this machine."""
    return messages(run, run.program(run.training.stages(run.task.length)[-1]).as_text())


def told_elsewhere(platform: str) -> dict[str, int]:
    """The messages of Griffin's program for eight accelerators that are not there, as their compiler writes it."""
    run = trainer("ra", {"data": 4, "model": 2}, batch_size=16, microbatch=16)
    if platform == "cuda":
        target = (tiny.ROOT / "benchmarks" / "kernels" / "h200.textproto").read_text()
        found = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x8x1").devices
    else:
        found = topologies.get_topology_desc("v5e:2x4", platform="tpu").devices
    run.placement.__dict__["mesh"] = Mesh(np.asarray(found).reshape(4, 2), ("data", "model"))
    whole = NamedSharding(run.placement.mesh, PartitionSpec())
    seeds, steps = (
        jax.ShapeDtypeStruct(shape, kind, sharding=whole) for shape, kind in (((1,), "uint32"), ((), "int32"))
    )
    stage = run.training.stages(run.task.length)[-1]
    state = run.placement.placed(run.abstract)
    sizes = {"length": stage.length, "batch": stage.batch_size, "shortest": None}
    # This process is a test's own, and has a CPU alone.
    jax.default_backend = lambda: "gpu" if platform == "cuda" else platform
    traced = run.jitted.trace(state, seeds, steps, (), **sizes)
    return messages(run, traced.lower(lowering_platforms=(platform,)).compile().as_text())


def kept(tree: Any) -> int:
    """The bytes that the first device has of it."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def measured_sample() -> dict[str, Any]:
    """Griffin in float64: its losses on two meshes and on one device, its messages, and its way from mesh to mesh."""
    one = on_one_device("ra", "float64")
    by_step = trainer("ra", {"data": 4, "model": 2}, "float64")
    by_layer = trainer("ra", {"data": 2, "model": 4}, "float64", gather="layer")
    runs = {"one": one, "step": by_step, "layer": by_layer}
    begun = {"one": one.init(), "step": by_step.init()}
    # The same numbers: one `init` more would take seconds to compile.
    begun["layer"] = jax.device_put(jax.tree.map(np.array, begun["step"]))
    whole = {}
    for name, run in runs.items():
        state, first = losses(run, begun[name], 4)
        if name == "step":
            bytes_kept = kept(state.params), kept(state.optimizer)
            restored, same = through_checkpoint(run, state, runs)
        whole[name] = first + losses(run, state, 4)[1]
    goes_on = {name: whole["one"][:4] + losses(runs[name], state, 4)[1] for name, state in restored.items()}
    return {
        "losses": whole,
        "resumed": goes_on,
        "restored as it was": same,
        "kept": bytes_kept,
        "told": {name: told(runs[name]) for name in ("step", "layer")},
    }


def through_checkpoint(run: Trainer, state: Any, others: dict[str, Trainer]) -> tuple[dict[str, Any], bool]:
    """What each of the `others` restores of a state of `run`, and whether the parameters are the same everywhere."""
    restored = {}
    with tempfile.TemporaryDirectory() as folder, closing(Checkpoints(Path(folder))) as checkpoints:
        checkpoints.save(state, 4, {})
        for name, other in others.items():
            found = checkpoints.restore(other.restorable, other.step.layout)
            assert found is not None
            restored[name] = found.state
    same = all(equal(found.params, state.params) for found in restored.values())
    back = restored["one"]
    with tempfile.TemporaryDirectory() as folder, closing(Checkpoints(Path(folder))) as checkpoints:
        checkpoints.save(back, 4, {})
        again = checkpoints.restore(run.restorable, run.step.layout)
        assert again is not None
        return restored, same and equal(again.state, state)


def measured_all(precision: str) -> dict[str, dict[str, list[float]]]:
    """The losses of every family on every mesh, and on one device."""
    steps, _ = PRECISIONS[precision]
    found: dict[str, dict[str, list[float]]] = {}
    for family, pattern in FAMILIES.items():
        runs = {"one": on_one_device(pattern, precision)}
        runs |= {f"{d}x{m}": trainer(pattern, {"data": d, "model": m}, precision) for d, m in MESHES}
        found[family] = {name: losses(run, run.init(), steps)[1] for name, run in runs.items()}
    return found


# Models compute in float32 at least, so the float64 of the comparison takes its place everywhere.
PROGRAM = f"""
import json, sys
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", {DEVICES})
if "float64" in sys.argv[1:]:
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64
    import evalkit.models.model
    evalkit.models.model.DTYPES = ("float64",)
sys.path[:0] = ["tests", "tests/training"]
import test_meshes
assert jax.device_count() == {DEVICES}
words = sys.argv[2:] if sys.argv[1] == "all" else []
print(json.dumps(getattr(test_meshes, "measured_" + sys.argv[1])(*words)))
"""


@cache
def measured(*words: str) -> dict[str, Any]:
    return tiny.told_by(PROGRAM, *words)


def apart(found: list[float], wanted: list[float]) -> float:
    return float(np.max(np.abs(np.asarray(found) / np.asarray(wanted) - 1)))


@pytest.mark.slow
def test_a_mesh_trains_as_one_device_does() -> None:
    """Griffin, its biases included; parameters are gathered once a step, and layer by layer."""
    found = measured("sample", "float64")["losses"]
    assert all(apart(found[name], found["one"]) < 1e-9 for name in ("step", "layer")), found


@pytest.mark.slow
def test_a_checkpoint_goes_from_mesh_to_mesh() -> None:
    """The state is the same on each, and training goes on as if nothing had happened."""
    found = measured("sample", "float64")
    assert found["restored as it was"]
    assert set(found["resumed"]) == {"one", "step", "layer"}
    assert all(apart(losses, found["losses"]["one"]) < 1e-9 for losses in found["resumed"].values()), found


@pytest.mark.slow
def test_devices_tell_each_other_what_was_promised_and_no_more() -> None:
    """Two blocks: two mixers and two MLPs, none of which speaks within convolution, gates or scan."""
    of_the_model = {
        "all-reduce over model forward": 4,
        "all-reduce over model back": 4,
        "all-reduce over model": 1,  # gradients of the keys' and values' maps and of the biases that are added once
        "all-reduce over data, scalars": 1,  # loss and accuracy
        "all-reduce over all, scalars": 1,  # the gradient's norm
    }
    found = measured("sample", "float64")["told"]
    assert found["step"] == of_the_model | {"all-gather over data": 1, "reduce-scatter over data": 1}
    # Three layers: the two blocks, and the embedding with the last norm.
    by_layer = {"all-gather over data forward": 3, "all-gather over data back": 3, "reduce-scatter over data back": 3}
    assert found["layer"] == of_the_model | by_layer


COMPILERS = {"cuda": "jax_cuda12_plugin", "tpu": "libtpu"}
ELSEWHERE = f"""
import json, os, sys
os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost")
import jax
jax.config.update("jax_num_cpu_devices", {DEVICES})
sys.path[:0] = ["tests", "tests/training"]
import test_meshes
print(json.dumps(test_meshes.told_elsewhere(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("platform", COMPILERS)
def test_programs_for_eight_accelerators_have_the_same_messages(platform: str) -> None:
    """XLA for a v5e writes the one gather and the one scatter of a step as all-reduces, one with the scalars in it."""
    if importlib.util.find_spec(COMPILERS[platform]) is None:
        pytest.skip(f"{COMPILERS[platform]} is not installed, which compiles for hardware that is not there")
    found = tiny.told_by(ELSEWHERE, platform)
    of_the_model = {name: count for name, count in found.items() if " model" in name}
    assert of_the_model == {
        "all-reduce over model forward": 4,
        "all-reduce over model back": 4,
        "all-reduce over model": 1,
    }
    if platform == "tpu":
        assert {name for name in found if " model" not in name} <= {
            "all-reduce over data",
            "all-reduce over data, scalars",
            "all-reduce over all, scalars",
        }
        assert found["all-reduce over data"] == 2
    else:
        assert found["all-gather over data"] == found["reduce-scatter over data"] == 1
        assert not {name for name in found if name.startswith(("all-to-all", "collective"))}


@pytest.mark.slow
def test_a_device_keeps_what_zero_and_megatron_say() -> None:
    """What lies on one of 4 x 2 devices, in float64, is twice the bytes that are foretold in float32."""
    foretold = bytes_a_device(trainer("ra", {"data": 4, "model": 2}))
    parameters, optimizer = measured("sample", "float64")["kept"]
    count = 4 + 4  # AdamW's count of steps, and the schedule's, are integers and on every device
    assert (parameters, optimizer - count) == (2 * foretold.parameters, 2 * (foretold.optimizer - count))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_family_trains_alike_on_every_mesh(precision: str) -> None:
    _, tolerance = PRECISIONS[precision]
    for family, found in measured("all", precision).items():
        wanted = found.pop("one")
        assert set(found) == {"8x1", "4x2", "2x4", "1x8"}
        assert all(apart(losses, wanted) < tolerance for losses in found.values()), (family, found)


def whole_and_shared(run: Trainer) -> tuple[int, int]:
    """How many numbers every device of the model axis has, and how many are shared among them."""
    whole = shared = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(run.model.init(jax.random.key(0))):
        name = jax.tree_util.keystr(path)
        everyone = re.search(r"embedding|norm|'key'|'value'|'(output|down)'\]\['bias'", name)
        whole, shared = (whole + leaf.size, shared) if everyone else (whole, shared + leaf.size)
    return whole, shared


@pytest.mark.parametrize(("data", "model"), MESHES)
def test_bytes_a_device_are_those_of_zero_and_megatron(data: int, model: int) -> None:
    """Megatron divides layers, and ZeRO what that leaves: parameters, two moments, and gradients that go by layer."""
    mesh = {"data": data, "model": model}
    by_step, by_layer = trainer("ra", mesh), trainer("ra", mesh, gather="layer")
    whole, shared = whole_and_shared(trainer("ra", "auto"))
    if model == 1:
        whole, shared = 0, whole + shared
    on_model = whole + shared // model
    found, counts = bytes_a_device(by_step), 8
    assert found.parameters == 4 * on_model // data
    assert found.optimizer == 2 * found.parameters + counts
    assert found.gathered == found.gradient == 4 * on_model
    assert (found.average, bytes_a_device(trainer("ra", mesh, average=0.9)).average) == (0, found.parameters)
    found = bytes_a_device(by_layer)
    assert found.gradient == found.parameters == 4 * on_model // data
    assert found.gathered < 4 * on_model


def test_a_mesh_that_divides_no_parameter_is_refused() -> None:
    with pytest.raises(UserError, match="mesh: data: 7 divides no axis of any parameter; give a divisor of the widths"):
        bytes_a_device(trainer("ra", {"data": 7, "model": 1}))


def test_parameters_in_bfloat16_are_gathered_as_such_and_kept_in_float32() -> None:
    mesh = {"data": 4, "model": 2}
    half, full = trainer("ra", mesh, parameter_dtype="bfloat16"), trainer("ra", mesh)
    assert bytes_a_device(half).parameters == bytes_a_device(full).parameters
    assert bytes_a_device(full).gathered / 2 < bytes_a_device(half).gathered < bytes_a_device(full).gathered
    assert {leaf.dtype for leaf in jax.tree.leaves(half.abstract.params)} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_a_step_in_bfloat16_sees_no_more_of_a_matrix() -> None:
    """A change below bfloat16's last bit changes no loss if it is of a matrix, and does if it is of a norm."""
    run = trainer("a", "auto", parameter_dtype="bfloat16")
    params = run.model.init(jax.random.key(0))
    example = run.feed.batch((), jnp.int32(0), 0, jnp.int32(0), 2, LENGTH)

    @jax.jit
    def loss(params: Any) -> jax.Array:
        layout = run.step.layout
        return run.step.gradient(layout.gathered(layout.vectors(params)), example)[0]

    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), params)
    moved = jax.tree.map(lambda leaf: leaf * (1 + 1e-3) if leaf.ndim > 1 else leaf, rounded)
    norms = jax.tree.map(lambda leaf: leaf * (1 + 1e-3) if leaf.ndim == 1 else leaf, rounded)
    assert loss(moved) == loss(rounded)
    assert loss(norms) != loss(rounded)


@pytest.mark.parametrize(
    ("pattern", "mesh", "told"),
    [
        ("a", {"data": 1, "model": 3}, "model: 3 does not divide the 8 heads of blocks.0.mixer"),
        ("r", {"data": 1, "model": 5}, "model: 5 does not divide the 16 channels of blocks.0.mixer"),
        ("r", {"data": 1, "model": 16}, "model: 16 does not divide the 8 blocks of the gates of blocks.0.mixer"),
    ],
)
def test_a_mesh_that_does_not_divide_a_model_is_refused(pattern: str, mesh: dict[str, int], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        trainer(pattern, mesh)


@pytest.mark.parametrize(
    ("batch", "devices", "told"),
    [
        (6, 8, "data: 4 does not divide a batch of 6"),
        (8, 6, "data: 4 x model: 2 devices do not divide the 6 that there are"),
    ],
)
def test_a_mesh_that_does_not_divide_a_batch_or_the_devices_is_refused(batch: int, devices: int, told: str) -> None:
    refuse_undivided(Sizes(4, 2), [8, 4], 16)
    with pytest.raises(UserError, match=re.escape(told)):
        refuse_undivided(Sizes(4, 2), [8, batch], devices)


def test_a_mesh_is_refused_before_anything_is_compiled() -> None:
    """One device is no 4 x 2 of them."""
    with pytest.raises(UserError, match="do not divide the 1 that there are"):
        trainer("ra", {"data": 4, "model": 2}).init()


@pytest.mark.parametrize("name", ["mamba", "gla", "hawk_complex", "mqa_conv"])
def test_a_mixer_without_rules_is_not_divided_over_the_model_axis(name: str) -> None:
    """It trains on a mesh whose data axis has all devices."""
    model = Spec.of(["task=induction_heads", f"model={name}"]).experiment.model
    assert model is not None
    mesh.layout_of(model, Sizes(2, 1), "step", "float32")
    with pytest.raises(UserError, match=r"mesh: no rule divides blocks\.\d\.mixer\S* .*the model axis; give model: 1"):
        mesh.layout_of(model, Sizes(1, 2), "step", "float32")


class Averages(nnx.Module):
    """A mixer of one's own: each channel of a map forgets by half."""

    window = None

    def __init__(self, width: int, *, rngs: nnx.Rngs, channels: int = 8):
        self.input, self.output = Linear(width, channels, rngs=rngs), Linear(channels, width, bias=True, rngs=rngs)

    def __call__(self, x: Any, positions: Any, cache: Any) -> Any:
        u = self.input(x)
        y, last = scanned(u, jnp.full_like(u, 0.5), positions, cache)
        return self.output(y), None if cache is None else last

    def init_cache(self, batch: int, length: int) -> jax.Array:
        return jnp.zeros((batch, self.input.kernel.shape[1]))

    def division(self) -> Division:
        return Division({**into("input"), **out_of("output")}, {"channels": self.input.kernel.shape[1]})


def of_ones_own(on: Any) -> Trainer:
    task, _ = parts("a", "float32")
    sizes = {"vocab_size": task.vocab_size, "width": WIDTH, "pattern": "o", "mlp_expansion": 0}
    training = trainer("a", "auto").training
    return Trainer(task, build(mixers={"o": Averages}, **sizes), training, [0], on)


def measured_own() -> dict[str, Any]:
    """The losses of a mixer of one's own on one device and on two, and what the two say to each other."""
    one, two = of_ones_own({"data": 1, "model": 1}), of_ones_own({"data": 1, "model": 2})
    return {name: losses(run, run.init(), 3)[1] for name, run in (("one", one), ("two", two))}


@pytest.mark.exhaustive  # Griffin, whose mixers say it in the same words, trains on meshes above
def test_a_mixer_of_ones_own_says_how_devices_share_it() -> None:
    found = measured("own", "float32")
    assert apart(found["two"], found["one"]) < 1e-5


def test_a_mixer_of_ones_own_is_refused_where_its_rules_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"model: 3 does not divide the 8 channels of blocks\.0\.mixer"):
        of_ones_own({"data": 1, "model": 3})
    monkeypatch.setattr(Averages, "division", lambda self: Division(into("input"), {}))
    with pytest.raises(UserError, match=r"no rule divides blocks\.0\.mixer\.output\.bias over 2 devices"):
        of_ones_own({"data": 1, "model": 2})


@pytest.mark.parametrize("mesh", ["{data: 4}", "{data: 0, model: 1}", "eight", "{data: 4, model: 2, time: 1}"])
def test_what_is_no_mesh_is_refused_in_one_line(mesh: str) -> None:
    with pytest.raises(UserError, match=r"mesh=.*; allowed: auto, or devices of both axes"):
        tiny.experiment(f"mesh={mesh}")


def test_gathering_by_layer_is_of_a_mesh() -> None:
    with pytest.raises(UserError, match=r"train\.gather=layer.*mesh"):
        tiny.experiment("train.gather=layer")


@pytest.mark.parametrize("setting", [{"optimizer": "clipped_adamw"}, {"state_passing": 0.5}])
def test_training_that_looks_at_whole_arrays_is_of_no_mesh(setting: dict[str, Any]) -> None:
    name, value = next(iter(setting.items()))
    with pytest.raises(ValueError, match=f"train.{name}.*which a mesh divides"):
        trainer("r", {"data": 2, "model": 1}, **setting)
    with pytest.raises(UserError, match=f"train.{name}.*which a mesh divides"):
        tiny.experiment("mesh={data: 1, model: 1}", f"train.{name}={value}")


@pytest.mark.exhaustive  # of one device: tests/faults/test_numbers.py
def test_where_a_loss_on_a_mesh_is_no_number_is_told_from_its_checkpoint(tmp_path: Path) -> None:
    """A mesh of one device, whose second block has a finite value that overflows."""
    run = trainer("ra", {"data": 1, "model": 1})
    state = run.init()
    state.params["blocks"][1]["mixer"]["output"]["kernel"] *= 3e38
    bad = Sums(jnp.zeros(1), jnp.zeros(1), jnp.array([0]), jnp.array([1]))
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(state, 0, {})
        with pytest.raises(UserError, match=r"at step 0, seed 0: it begins in blocks\.1\.mixer; checkpoint 0 is kept"):
            finite.refuse_non_finite(bad, run, checkpoints, 1)


@pytest.mark.exhaustive  # of one device: tests/faults/test_numbers.py
def test_skipping_steps_is_of_a_mesh_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose loss is no number leaves parameters and moments as they were."""
    run = trainer("a", {"data": 1, "model": 1}, skip_nonfinite=True, log_every=2, eval_every=2, checkpoint_every=2)
    gradient = run.step.gradient
    monkeypatch.setattr(run.step, "gradient", lambda *given: (jnp.nan, *gradient(*given)[1:]))
    before = jax.tree.map(np.asarray, run.init())
    after, sums = run.advance(run.init(), run.training.stages(LENGTH)[-1], 1)
    assert equal((after.params, after.optimizer), (before.params, before.optimizer))
    assert (int(after.step[0]), int(sums.nonfinite_steps[0]), float(sums.loss[0])) == (1, 1, 0)


@pytest.mark.slow
def test_a_block_that_is_computed_again_has_the_same_gradient() -> None:
    """With `remat` alone."""
    task, plain = parts("a", "float32")
    mixers = {"a": partial(MQA, heads=8, head_dim=2, window=6, output_bias=True)}
    again = build(
        vocab_size=task.vocab_size,
        width=WIDTH,
        pattern="a",
        mixers=mixers,
        mlp_expansion=2,
        mlp_bias=True,
        remat=True,
    )
    params, tokens = plain.init(jax.random.key(0)), jnp.zeros((1, LENGTH), jnp.int32)

    def gradient(model: Any) -> Any:
        return jax.grad(lambda params: jnp.square(model.apply(params, tokens)[0]).sum())

    found, wanted = (jax.jit(gradient(model))(params) for model in (again, plain))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    again_told, plain_told = (str(jax.make_jaxpr(gradient(model))(params)) for model in (again, plain))
    assert "remat" in again_told and "remat" not in plain_told
