"""Effective remembrance: what a suffix alone predicts, beside a plain forward pass, and what a window cannot see."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.core import streams
from evalkit.core.contracts import Trained
from evalkit.core.rows import Header, Record, Row, value
from evalkit.evaluations.remembrance import CHANGED, STATE_NORM, measure, report
from evalkit.evaluations.remembrance.measure import Remembrance
from evalkit.reports.pooling import Line, Run
from support.evaluated import trained_of
from support.shrunk import applied, experiment, params_of

LENGTH, SEQUENCES = 24, 6


def measured(trained: Trained, **settings: object) -> dict[tuple[str, int | None], float]:
    """The mean of each measurement, by its metric and the tokens kept or the block."""
    evaluation = Remembrance(lengths=[LENGTH], sequences=SEQUENCES, batch_size=4, chunk=8)
    rows = list(replace(evaluation, **settings).run(trained))
    return {(row["metric"], row["position"] or row["extra"].get("block")): value(row) for row in rows}


@pytest.mark.parametrize("model", ["hawk", "mqa"])
def test_a_suffix_predicts_what_a_forward_pass_over_it_predicts(model: str) -> None:
    """In float64 by NumPy, each suffix for itself; batches that are not full and pads change nothing."""
    trained = trained_of(experiment(model))
    found = measured(trained, kept_tokens=[1, 5, 100])
    example = trained.feed.held_out(streams.TEST, 0, SEQUENCES, LENGTH)
    apply, params = applied(trained.model), params_of(trained.model)

    def predicted(first: int) -> np.ndarray:
        logits = np.asarray(apply(params, jnp.asarray(example.tokens[:, first:]))[0][:, -1], np.float64)
        return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)

    assert np.asarray(example.mask)[:, -1].all(), "the last position is the scored one"
    for kept in (1, 5):
        wanted = 0.5 * np.abs(predicted(LENGTH - kept) - predicted(0)).sum(axis=-1).mean()
        assert found[CHANGED, kept] == pytest.approx(wanted, abs=2e-6) and wanted > 1e-3
    assert (CHANGED, 100) not in found, "a suffix is shorter than the sequence"


def test_only_sequences_of_which_something_is_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last scored position is at token 3, its last 5 tokens are all that is read."""
    monkeypatch.setattr(measure, "_last_scored", lambda mask: np.array([LENGTH - 1, 2] * len(mask))[: len(mask)])
    evaluation = Remembrance(lengths=[LENGTH], kept_tokens=[1, 5], sequences=SEQUENCES, batch_size=4, chunk=8)
    rows = list(evaluation.run(trained_of(experiment("hawk"))))
    counts = {row["position"]: row["count"] for row in rows if row["metric"] == CHANGED}
    assert counts == {1: SEQUENCES, 5: SEQUENCES // 2}


def test_what_a_window_does_not_see_moves_nothing() -> None:
    """One block of local attention with a window of 4 tokens: the last 4 tokens are all that counts."""
    built = experiment("mqa_local", "model.mixers.attention.window=4", "model.pattern=[attention]")
    found = measured(trained_of(built))
    assert [kept for _, kept in found] == [1, 2, 4, 8, 16]
    assert all(found[CHANGED, kept] > 1e-3 for kept in (1, 2))
    assert all(found[CHANGED, kept] == pytest.approx(0, abs=1e-6) for kept in (4, 8, 16))


def test_the_norm_of_a_state_is_that_of_the_cache_after_the_sequence() -> None:
    """Of a state of matrices, after all that was read; attention has none."""
    trained = trained_of(experiment("gated_deltanet_hybrid"))
    example = trained.feed.held_out(streams.TEST, 0, SEQUENCES, LENGTH)
    cache = trained.model.init_cache(SEQUENCES, 64)
    after = applied(trained.model)(params_of(trained.model), jnp.asarray(example.tokens), None, cache)[1]
    found = {block: norm for (metric, block), norm in measured(trained).items() if metric == STATE_NORM}
    assert sorted(found) == [0]
    for block, norm in found.items():
        states = np.asarray(after[block].h).reshape(SEQUENCES, -1)
        assert norm == pytest.approx(np.linalg.norm(states, axis=-1).mean(), rel=1e-4)


def test_the_report_has_a_row_a_length_and_compares_at_the_longest() -> None:
    def row(metric: str, length: int, position: int | None, total: float, seed: int, **extra: int) -> Row:
        at = {"length": length, "position": position, "total": total, "count": 4, "seed": seed}
        return {"metric": metric, "split": "test", "extra": extra, **at}  # type: ignore[typeddict-item]

    rows = [row(CHANGED, length, kept, 4 / kept, seed) for length in (8, 16) for kept in (1, 2) for seed in (0, 1)]
    rows += [row(STATE_NORM, length, None, float(length), seed, block=2) for length in (8, 16) for seed in (0, 1)]
    header = Header(run="r", task="t", model="m", kind="k", seeds=[0, 1], notes=[])  # type: ignore[call-arg]
    record = Record(header, rows)  # type: ignore[call-arg]
    run = Run(None, record, {})  # type: ignore[arg-type]
    alone = [Line("m", [run], alone=True)]
    changed, states = report.tables(alone)
    assert changed.lines == [["8 tokens", "1.000", "0.500"], ["16 tokens", "1.000", "0.500"]]
    assert states.lines == [["block 2", "2", "4"]]
    assert set(report.figures(alone, "title", [])) == {"remembrance", "states"}
    both = [Line("m", [run]), Line("n", [run])]
    assert [line[-2:] for line in report.tables(both)[0].lines] == 2 * [["1.000", "0.500"]]
    assert set(report.figures(both, "title", [])) == {"compare"}
    assert len(report.records(alone)) == len(rows)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lengths": []}, "lengths="),
        ({"kept_tokens": [8]}, "nothing shorter is read"),
        ({"kept_tokens": [0]}, "kept_tokens="),
        ({"sequences": 0}, "sequences=0"),
    ],
)
def test_a_value_that_cannot_be_is_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Remembrance(**{"lengths": [8], **settings})  # type: ignore[arg-type]
