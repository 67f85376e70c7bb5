"""Streamed evaluation: chunks change nothing, sequences are counted once, and memory does not grow with length."""

import jax
import numpy as np
import pytest

from evalkit.configuration import catalogue
from evalkit.configuration import experiment as config
from evalkit.core import streams
from evalkit.core.objective import tally
from evalkit.evaluations.extrapolation import Extrapolation
from evalkit.inference.streaming import stream_tally
from support.evaluated import trained_of
from support.shrunk import overrides_of


def shrunk(model: str, task: str = "selective_copying") -> config.Experiment:
    return config.built([f"task={task}", f"model={model}", "task.length=40", *overrides_of(model)])


@pytest.mark.parametrize("model", catalogue.options("model"))
@pytest.mark.parametrize("chunk", [7, 32, 1000])
def test_streaming_gives_the_whole_result(model: str, chunk: int) -> None:
    experiment = shrunk(model)
    params = jax.jit(experiment.model.init)(jax.random.key(0))
    example = streams.held_out_batch(experiment.task, streams.TEST, 0, 3, 40)
    whole = tally(jax.jit(experiment.model.apply)(params, example.tokens)[0], example)
    streamed = stream_tally(experiment.model, params, example, chunk)
    for one, other in zip(whole, streamed, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def rows_of(experiment: config.Experiment, evaluation: Extrapolation) -> list:
    return list(evaluation.run(trained_of(experiment)))


def test_the_batch_size_changes_no_number() -> None:
    experiment = shrunk("griffin")
    settings = {"lengths": [40, 64], "sequences": 5, "long_sequences": 3, "long_from": 64, "chunk": 16}
    one, other = (rows_of(experiment, Extrapolation(**settings, batch_size=size)) for size in (2, 5))
    assert [entry["count"] for entry in one] == [5, 5, 5, 3, 3, 3]
    for left, right in zip(one, other, strict=True):
        assert left["metric"] == right["metric"]
        assert left["total"] == pytest.approx(right["total"], rel=1e-5)


def test_what_is_too_long_is_said_not_run() -> None:
    rows = rows_of(shrunk("mqa"), Extrapolation(lengths=[40, 80], sequences=2, batch_size=2, max_length=40))
    assert {entry["length"] for entry in rows if entry["count"]} == {40}
    (left_out,) = [entry for entry in rows if not entry["count"]]
    assert left_out["length"] == 80 and "max_length=40" in left_out["extra"]["not_run"]


@pytest.mark.parametrize("model", ["hawk", "griffin"])
def test_memory_does_not_grow_with_length(model: str) -> None:
    """The program that advances by a chunk is given the chunk and the cache, and nothing of either is of the length."""
    from evalkit.core.devices import mesh_for
    from evalkit.core.objective import Tally
    from evalkit.inference.streaming import advance

    experiment = shrunk(model)
    params = jax.eval_shape(experiment.model.init, jax.random.key(0))

    def memory(length: int) -> int:
        example = jax.eval_shape(lambda: streams.held_out_batch(experiment.task, streams.TEST, 0, 2, 64))
        part = type(example)(*(jax.ShapeDtypeStruct((2, 64), field.dtype) for field in example[:3]))
        cache = jax.eval_shape(lambda: experiment.model.init_cache(2, length))
        zero = jax.ShapeDtypeStruct((2,), np.float32)
        lowered = advance.lower(experiment.model, mesh_for(2), params, part, cache, Tally(zero, zero, zero), True)
        analysis = lowered.compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes + analysis.argument_size_in_bytes

    assert memory(2**18) == memory(2**12)


@pytest.mark.parametrize(
    ("right", "needed"),
    [(1.0, 384), (0.0, 64), (1 / 15, 128), (0.97, 480), (0.95, 1024), (0.5, 384)],
    ids=["perfect", "never", "chance", "between the marks", "on a mark", "half"],
)
def test_sampling_stops_when_the_interval_is_narrow_and_off_the_marks(right: float, needed: int) -> None:
    """381 sequences without an error put Wilson's interval above 0.99: looked at every 32, that is 384."""
    evaluation = Extrapolation(lengths=[8], interval=0.1)
    looks = range(32, 1025, 32)
    assert next((n for n in looks if evaluation._enough(right * n, n)), 1024) == needed
    assert not Extrapolation(lengths=[8])._enough(1024.0, 1024), "without an interval all are taken"


@pytest.mark.parametrize(("every", "seen"), [(None, [40, 80]), (7, [40, 80]), (2, [])])
def test_longer_lengths_are_looked_at_now_and_then(every: int | None, seen: list[int]) -> None:
    """At step 7."""
    experiment = shrunk("hawk", "induction_heads")
    evaluation = Extrapolation(lengths=[40], during=[40, 80], during_sequences=2, during_every=every)
    found = list(evaluation.probe(trained_of(experiment)))
    assert [entry["length"] for entry in found if entry["metric"] == "accuracy"] == seen
    assert all(entry["split"] == "validation" for entry in found)


def test_a_ladder_that_stops_early_has_the_rows_of_a_shorter_one() -> None:
    experiment = shrunk("hawk", "induction_heads")  # untrained: at chance, so soon decided
    settings = {"lengths": [40], "chunk": 40}
    stopped = rows_of(experiment, Extrapolation(**settings, sequences=1000, interval=0.2, batch_size=24))
    (count,) = {entry["count"] for entry in stopped}
    assert count in (32, 64, 96)
    assert [entry["total"] for entry in stopped] == pytest.approx(
        [entry["total"] for entry in rows_of(experiment, Extrapolation(**settings, sequences=count))]
    )


@pytest.mark.parametrize("model", ["hawk", "mqa"])
def test_a_state_that_is_reset_sees_the_last_segment_alone(model: str) -> None:
    experiment = shrunk(model, "induction_heads")
    params = jax.jit(experiment.model.init)(jax.random.key(0))
    (row_of_loss,) = [
        entry
        for entry in rows_of(
            experiment, Extrapolation(lengths=[48], sequences=3, batch_size=3, chunk=7, reset_every=16)
        )
        if entry["metric"] == "loss"
    ]
    example = streams.held_out_batch(experiment.task, streams.TEST, 0, 3, 48)
    last = type(example)(*(field[:, 32:] for field in example[:3]))
    alone = tally(jax.jit(experiment.model.apply)(params, last.tokens)[0], last).scores()["loss"]
    assert row_of_loss["total"] == pytest.approx(float(alone.sum()), rel=1e-4)
    assert row_of_loss["extra"] == {"reset_every": 16}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lengths": [0]}, "length 0"),
        ({"lengths": [4], "chunk": 0}, "chunk=0; allowed: 1 or more"),
        ({"lengths": [4], "max_length": 0}, "max_length=0"),
        ({"lengths": [4], "reset_every": 0}, "reset_every=0; allowed: 1 or more, or null"),
        ({"lengths": [4], "interval": 1.0}, "interval=1.0; allowed: between 0 and 1, or null"),
    ],
)
def test_an_impossible_ladder_is_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Extrapolation(**settings)
