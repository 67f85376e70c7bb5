"""`bench decode` and `bench throughput`: what is timed is greedy decoding, and what is foretold is its arithmetic."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.bench import decode, sampling
from evalkit.core.contracts import Pretrained
from evalkit.inference.prefill import prefill
from evalkit.tasks.text.tokenizers import Bytes
from support.shrunk import applied, overrides_of, params_of, shrunk

TINY = ["model=griffin", *overrides_of("griffin"), "vocab_size=16"]
LIMITS = decode.Limits(copy=1e9, maps=2e9, attention=5e8)


def pretrained() -> Pretrained:
    model = shrunk("griffin")
    return Pretrained(model, params_of(model), Bytes(), "", "", None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose limits are known, so that no test measures this one's."""
    monkeypatch.setattr(sampling, "rates", lambda repeats: {"copy": LIMITS.copy})
    monkeypatch.setattr(decode, "limits", lambda *_: LIMITS)


def bench(*words: str, capsys: pytest.CaptureFixture[str]) -> dict:
    """What `evalkit bench` answers as JSON."""
    assert main(["bench", *words, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_what_is_timed_is_greedy_decoding() -> None:
    given = pretrained()
    prompt = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [3, 3, 5, 1, 0, 2, 9, 9, 4, 4]]
    read = prefill(given, prompt, rows=2, size=20, chunk=5)
    run = decode.program(given, read)
    assert decode.peak_bytes(run) > given.model.cache_bytes(2, 20)
    after, _ = run(given.params, read, *decode.arguments(read, 4))
    tokens = np.zeros((2, 16), np.int32)
    tokens[:, :10] = prompt
    for end in range(10, 15):
        # What stands after the end changes nothing before it.
        logits = applied(given.model)(given.params, jnp.asarray(tokens))[0][:, end - 1]
        tokens[:, end] = logits.argmax(-1)
    np.testing.assert_allclose(after.logits, logits, atol=1e-4)


@pytest.mark.parametrize("prefilled", [0, 5, 30])
def test_what_is_foretold_is_the_sum_over_the_tokens(prefilled: int) -> None:
    model, weights, batch = shrunk("griffin"), 10**6, 3
    found = decode.predicted(model, weights, batch, prefilled, [4, 100], LIMITS)
    expected, totals = {}, np.zeros(3)
    for step in range(1, 101):
        at = max(1, prefilled) + step
        reading = (weights + batch * model.cache_bytes(1, at)) / LIMITS.copy
        flops, first = model.flops(at) - model.flops(at - 1), model.flops(1)
        computing = batch * (first / LIMITS.maps + (flops - first) / LIMITS.attention)
        totals += (reading, max(reading, computing), reading + computing)
        expected[step] = totals.copy()
    for each, count in zip(found, (4, 100), strict=True):
        np.testing.assert_allclose(each, expected[count], rtol=1e-6)
        assert each.equation_5 <= each.larger <= each.sum


def test_the_limits_of_this_machine_are_rates() -> None:
    given = pretrained()
    found = decode.limits(given, batch=2, width=16, heads=2, head_dim=8, copy=5.0)
    assert found.copy == 5.0 and found.maps > 1e6 and found.attention > 1e6


@pytest.mark.exhaustive
@pytest.mark.usefixtures("blank")
def test_a_bench_that_was_stopped_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, machine: None
) -> None:
    words = [*TINY, "prefill=[0,12]", "tokens=[2,4]", "batch=2", "repeats=2", f"out={tmp_path}"]
    measured, measure = [], sampling._measured

    def stops(*given: object) -> dict:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(given[2])
        return measure(*given)

    monkeypatch.setattr(sampling, "_measured", stops)
    assert main(["bench", "decode", *words]) == 130
    capsys.readouterr()
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('{"repeat": 1, "mod')  # a line that was cut short
    monkeypatch.setattr(sampling, "_measured", lambda *given: measured.append(given[2]) or measure(*given))
    result = bench("decode", *words, capsys=capsys)
    assert measured == [0, 12, 0, 12]
    rows = result["rows"]
    assert [(row["prefill"], row["tokens"]) for row in rows] == [(0, 2), (0, 4), (12, 2), (12, 4)]
    for row in rows:
        assert len(row["rounds_s"]) == 2 and row["batch"] == 2
        assert row["tokens_per_s"] == pytest.approx(2 * row["tokens"] / row["seconds"])
        assert row["of_sum"] <= row["of_larger"] <= row["of_equation_5"]
        assert row["ms_per_token"] == pytest.approx(row["seconds"] / row["tokens"] * 1e3)
        assert row["of_equation_5"] == pytest.approx(row["seconds"] / row["equation_5_s"])
    kept = [json.loads(line)["at"] for line in (tmp_path / "measured.jsonl").read_text().splitlines()[1:]]
    lately = [(at[1]["seconds"] - at[0]["seconds"]) / 2 * 1e3 for at in kept[::2]]
    assert rows[1]["ms_lately"] == pytest.approx(np.median(lately))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"measured.jsonl", "rows.csv", "result.json", "decode-0.png", "decode-12.png"}
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["rows"] == rows
    assert main(["bench", "decode", *words, "batch=3"]) == 2
    assert "is of batch=2, not 3; give another out=FOLDER" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_throughput_is_measured_at_the_largest_batch_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: None
) -> None:
    model = shrunk("griffin")
    weights = sum(4 * leaf.size for leaf in jax.tree.leaves(params_of(model)))
    memory = weights + 60 * model.cache_bytes(1, 33)
    words = [*TINY, "tokens=[32]", f"memory_gb={memory / 1e9}", "most=40", "repeats=1", f"out={tmp_path}"]
    (row,) = bench("throughput", *words, capsys=capsys)["rows"]
    assert 1 < row["batch"] <= 40 and row["peak_bytes"] <= memory
    assert weights + row["caches_bytes"] <= memory
    assert row["tokens_per_s"] == pytest.approx(row["batch"] * row["tokens"] / row["seconds"])
    assert (tmp_path / "throughput.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decode", "tokens=[0,4]"], "tokens=[0,4]; allowed"),
        (["decode", "tokens=4"], "whole numbers, such as [128,256], from 1"),
        (["decode", "prefill=[-1]"], "prefill=[-1]; allowed"),
        (["decode", "batch=0"], "batch=0; allowed"),
        (["decode", "out="], "out=; allowed: out= a folder"),
        (["decode", *TINY, "batch=999999999"], "for batch 999999999"),
        (["decode", *TINY, "tokens=[99999999999]"], "positions end at"),
        (["decode", *TINY, "task=books"], "task=books is of a run"),
        (["throughput", *TINY, "memory_gb=1e9"], "memory_gb=1e+09, but this machine has"),
        (["throughput", *TINY, "memory_gb=1e-9"], "a smaller scale"),
        (["throughput", *TINY, "most=none"], "most=none; allowed"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and words in said[0]
    assert not list(tmp_path.iterdir())
