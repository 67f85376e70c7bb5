"""`bench steps`: what is timed is a training step of each model, at as many tokens a batch whatever the length."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from evalkit.__main__ import main
from evalkit.bench.steps import Noise
from support.faults import one_line
from support.shrunk import overrides_of

TINY = [*overrides_of("griffin"), "vocab_size=16", "tokens=32", "lengths=[8,16]"]


@pytest.mark.slow
def test_every_model_has_a_row_at_every_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=griffin", *TINY, "model.mixers.attention.window=4,8", "repeats=3", f"out={tmp_path}"]
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
def test_bad_input_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", "model=griffin", *TINY, *words]) == 2
    assert told in one_line(capsys.readouterr().err)
