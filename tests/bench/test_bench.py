"""The bench: what it counts and times is right, what it prints is whole, and what is wrong is refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.bench import matrix_state, recurrence, stopwatch
from evalkit.bench.steps import Noise
from evalkit.bench.stopwatch import quartiles, times
from evalkit.bench.training import product_flops
from evalkit.configuration.spec import Spec
from support.faults import one_line
from support.shrunk import overrides_of


@pytest.fixture(autouse=True)
def small_yardstick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine does at its best is measured by the tests of `rates` alone."""
    monkeypatch.setattr(stopwatch, "ON_A_CPU", stopwatch.Yardstick(64, 2**12, 0.0))


TINY = ["task=induction_heads", "model=griffin", "task.length=32", "train.batch_size=2", *overrides_of("griffin")]
TINY += ["model.pattern=[recurrent,recurrent]", "train.state_passing=null", "train.average=null"]


def test_products_are_counted_wherever_they_stand() -> None:
    def program(x, w):
        y = jax.lax.scan(lambda h, _: (h @ w, None), x, None, length=3)[0]
        y = jax.lax.cond(y.sum() > 0, lambda y: y @ w, lambda y: y, y)
        return jax.jit(lambda y: jnp.einsum("bi,bj->ij", y, y))(y)

    counted = product_flops(jax.make_jaxpr(program)(jnp.ones((5, 4)), jnp.ones((4, 4))))
    assert counted == 3 * 2 * 5 * 4 * 4 + 2 * 5 * 4 * 4 + 2 * 5 * 4 * 4


def test_times_are_taken_in_turn_after_a_first_call() -> None:
    calls = []
    taken = times({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert "".join(calls) == "ab" + "ab" * 3
    assert [len(seconds) for seconds in taken.values()] == [3, 3]
    assert quartiles([3.0, 1.0, 2.0]) == (2.0, 1.5, 2.5)


def test_a_copy_goes_to_memory_that_is_there() -> None:
    """A new array at each call is the system's work on its pages, three times as long as the copy."""
    copy = stopwatch.copy_to_one_place(64).call
    assert len({copy().unsafe_buffer_pointer() for _ in range(3)}) == 1
    np.testing.assert_array_equal(copy(), np.full(64, 2.0))


def test_what_is_counted_is_what_the_arrays_say() -> None:
    for copy in (stopwatch.copy_to_one_place(64), stopwatch.fresh_copy(64)):
        assert copy.amount == 2 * copy.call().nbytes
    for dtype in ("float32", "bfloat16"):
        product = stopwatch.product(16, dtype)
        result = product.call()
        assert result.dtype == dtype and product.amount == 2 * result.size * 16


def test_on_an_accelerator_dispatch_is_a_few_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a card of 5 TB/s and 1 PFLOP/s, each call takes several times what dispatching it does, and many follow."""
    made: dict[str, int] = {}

    def work(name: str, per_s: float, amount: Callable[[int], int]) -> Callable[..., stopwatch.Work]:
        def make(size: int, *_: object) -> stopwatch.Work:
            made[name] = amount(size)
            return stopwatch.Work(lambda: clock.run(made[name] / per_s), made[name])  # type: ignore[arg-type,return-value]

        return make

    clock = Clock()
    monkeypatch.setattr(stopwatch.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(stopwatch.jax, "block_until_ready", lambda _: clock.wait())
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(stopwatch, "product", work("product", 1e15, lambda rows: 2 * rows**3))
    monkeypatch.setattr(stopwatch, "copy_to_one_place", work("copy", 5e12, lambda count: 8 * count))
    measured = stopwatch.rates(3)
    assert measured["product"] == pytest.approx(1e15, rel=0.02)
    assert measured["copy"] == measured["fresh_copy"] == pytest.approx(5e12, rel=0.02)


class Clock:
    """A device that takes calls in order, each dispatched in 50 µs, and whose host learns of the end 200 µs later."""

    def __init__(self) -> None:
        self.now = self.busy_until = 0.0

    def run(self, seconds: float) -> None:
        self.now += 50e-6
        self.busy_until = max(self.now, self.busy_until) + seconds

    def wait(self) -> None:
        self.now = max(self.now, self.busy_until) + 200e-6


@pytest.mark.slow
def test_training_is_measured_and_taken_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", *TINY, "repeats=1", "steps=1", "format=json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    result = json.loads(lines[0])
    assert result["ms_per_step"] > 0 and result["compile_s"] > 0 and result["peak_bytes"] > 0
    # At the least every parameter is read, and its gradient written.
    params = jax.eval_shape(Spec.of(TINY).experiment.model.init, jax.random.key(0))
    assert result["counted_gb_per_step"] * 1e9 > 2 * sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    assert result["tokens_per_s"] == pytest.approx(2 * 32 / result["ms_per_step"] * 1e3)
    names = {part["name"]: part["times"] for part in result["parts"]}
    assert {name: names[name] for name in ("MLP", "gates", "scan", "norms", "data")} == {
        "MLP": 2, "gates": 2, "scan": 2, "norms": 5, "data": 1,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.exhaustive
def test_evaluation_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "evaluate", *TINY, "repeats=1", "length=64", "chunk=32", "format=json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokens_per_s"] == pytest.approx(64 / result["s"])


@pytest.mark.slow
def test_the_recurrence_is_measured_by_every_implementation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scan", "batch=1", "width=8", "shortest=16", "longest=16", "repeats=1", "format=json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {(row["length"], row["pass"]) for row in result["rows"]} == {(16, "forward"), (16, "forward+backward")}
    for row in result["rows"]:
        assert row["of_copy"] * result["machine_fresh_copy_gb_per_s"] == pytest.approx(row["gb_per_s"])
        if (row["operation"], row["dtype"], row["pass"]) == ("rglru", "float32", "forward+backward"):
            assert row["gb_per_s"] * row["ms"] * 1e6 == pytest.approx(12 * 4 * 8 * row["length"])


def test_the_matrix_state_is_measured_against_its_loop(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_state, "FORMS", {"kda": matrix_state.FORMS["kda"]})
    few = {name: matrix_state.CONTENDERS[name] for name in ("sequential", "chunks of 16")}
    monkeypatch.setattr(matrix_state, "CONTENDERS", few)
    tiny = ["batch=1", "heads=1", "keys=2", "values=2", "shortest=4", "longest=4", "repeats=1"]
    assert main(["bench", "state", *tiny, "format=json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["rows"]
    ms = {(row["operation"], row["pass"], row["implementation"]): row["ms"] for row in rows}
    assert len(ms) == len(rows) == 2 * 2
    for row in rows:
        loop = ms[row["operation"], row["pass"], "sequential"]
        assert row["of_loop"] == pytest.approx(loop / row["ms"])
    assert "of the loop's speed" in said.err and "kda" in said.err and "GB/s" not in said.err


@pytest.mark.slow
def test_a_length_that_is_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "memory", lambda: 2**16)
    one = next(recurrence.contenders())
    monkeypatch.setattr(recurrence, "contenders", lambda: [one])
    rows = recurrence.measure(batch=1, width=8, shortest=16, longest=256, repeats=1, patience=0)["rows"]
    reasons = {row["length"]: row.get("not_run") for row in rows}
    assert list(reasons) == [16, 32, 64, 128, 256]
    assert reasons[16] is None and "took" in reasons[32] and "GiB" in reasons[256]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["scan", "model=griffin"], "model=griffin is no setting of scan"),
        (["train", *TINY, "kernel=cuda"], "implementation='cuda'"),
        (["train", *TINY, "repeats=0"], "repeats=0; allowed"),
        (["train", *TINY, "train.bath_size=2"], "batch_size"),
        (["evaluate", "model=griffin"], "task is missing"),
        (["evaluate", *TINY, "length=2"], "length=2 is too short"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and words in said[0]


STEPS = [*overrides_of("griffin"), "vocab_size=16", "tokens=32", "lengths=[8,16]"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_every_model_has_a_row_at_every_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=griffin", *STEPS, "model.mixers.attention.window=4,8", "repeats=3", f"out={tmp_path}"]
    assert main(["bench", "steps", *words, "format=json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["length"], row["batch"]) for row in rows] == [(8, 4), (8, 4), (16, 2), (16, 2)]
    assert len({row["model"] for row in rows}) == 2
    for first, second in (rows[:2], rows[2:]):
        assert first["of_first"] == 1
        shares = np.divide(second["rounds_ms"], first["rounds_ms"])
        assert second["of_first"] == pytest.approx(np.median(shares))
        assert second["tokens_per_s"] == pytest.approx(32 / np.median(second["rounds_ms"]) * 1e3)
    assert {path.name for path in tmp_path.iterdir()} == {"steps.png", "rows.csv", "result.json"}


def test_noise_is_a_next_token_everywhere() -> None:
    example = Noise(16, 8).sample(jax.random.key(0), 8)
    np.testing.assert_array_equal(example.tokens[1:], example.targets[:-1])
    assert example.mask.all() and int(example.tokens.max()) < 16


@pytest.mark.parametrize(
    ("words", "told"),
    [(["lengths=[8,24]"], "lengths=24 does not divide tokens=32"), (["tokens=0"], "tokens=0; allowed")],
)
def test_bad_input_of_steps_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", "model=griffin", *STEPS, *words]) == 2
    assert told in one_line(capsys.readouterr().err)
