"""What devices read of a sequence together is what one device reads of it, on 4 CPU devices of a process of its own."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalkit.core.contracts import Pretrained
from evalkit.core.rows import Row, value
from evalkit.evaluations.extrapolation.measure import Extrapolation
from evalkit.evaluations.text.held_out import losses_of, split_losses_of
from evalkit.inference import streaming
from evalkit.inference.streaming import least_rows, rows_at_once, stream_tally
from evalkit.parallel.layouts.sequences import read_split, refuse_unsplit
from evalkit.tasks import Example
from evalkit.tasks.text.tokenizers import Numbers
from support import tiny
from support.evaluated import trained_of
from support.shrunk import WINDOW, experiment, params_of, shrunk

DEVICES = 4
CHUNK = WINDOW  # the shortest part of a device that local attention takes
LENGTH = 77  # two turns of all devices, and a third in which the second device's part ends in padding
TOLERANCE = 1e-5
MORE = ("hawk", "hawk_ungated", "hawk_convex", "mingru", "mqa_local", "mamba")


def example(vocab_size: int, restarts: bool) -> Example:
    """Three rows, scored here and there; with `restarts`, documents of 23 tokens, which begin within parts."""
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, vocab_size, (3, LENGTH)).astype(np.int32) for _ in range(2))
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32) % 23, tokens.shape) if restarts else None
    return Example(tokens, targets, rng.random(tokens.shape) < 0.5, positions)


def of_tallies(name: str, restarts: bool) -> float:
    """How far the mean loss of any row is from that of the stream, and any count of hits, which is whole."""
    model = shrunk(name)
    given = example(model.vocab_size, restarts)
    read = list(read_split(model, params_of(model), given, CHUNK, lambda: None))
    loss, hits = (np.concatenate([getattr(part, field) for part in read], axis=1) for field in ("loss", "correct"))
    wanted = stream_tally(model, params_of(model), given, CHUNK)
    mask = np.asarray(given.mask)
    of_loss = np.abs((loss * mask).sum(axis=1) - wanted.loss) / mask.sum(axis=1)
    return float(max(of_loss.max(), np.abs((hits * mask).sum(axis=1) - wanted.correct).max()))


def of_losses(name: str) -> float:
    """How far any token's loss is from the scorer's, of sequences of several lengths."""
    model = shrunk(name, "task.vocab_size=64")
    held = Pretrained(model, params_of(model), Numbers(64), "", "", None)
    sequences = [np.random.default_rng(seed).integers(0, 64, size) for seed, size in enumerate((LENGTH, 40, LENGTH))]
    pairs = zip(*(read(held, 16, lambda: None, sequences, 30) for read in (losses_of, split_losses_of)), strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def of_evaluation() -> list[float]:
    """How far each row of the evaluation is from that of `devices=rows`."""
    held = Extrapolation(lengths=[20, 50], sequences=3, batch_size=2, chunk=CHUNK)
    trained = trained_of(experiment("griffin"))

    def rows(devices: str) -> list[Row]:
        return list(replace(held, devices=devices).run(trained))

    pairs = list(zip(rows("rows"), rows("sequence"), strict=True))
    assert all({**one, "total": 0} == {**other, "total": 0} for one, other in pairs)
    return [abs((value(one) or 0) - (value(other) or 0)) for one, other in pairs]


PROGRAM = f"""
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", {DEVICES})
sys.path[:0] = ["tests", "tests/inference"]
import test_sequences as tests
assert jax.device_count() == {DEVICES}
# Losses and rows are of sequences without restarts.
found = {{"griffin 1": tests.of_tallies("griffin", True)}}
found |= {{"losses": tests.of_losses("griffin"), "rows": max(tests.of_evaluation())}}
if sys.argv[1] == "every model":
    found["griffin 0"] = tests.of_tallies("griffin", False)
    more = [(name, restarts) for name in tests.MORE for restarts in (0, 1)]
    found |= {{f"{{name}} {{restarts}}": tests.of_tallies(name, restarts) for name, restarts in more}}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", ["griffin", pytest.param("every model", marks=pytest.mark.exhaustive)])
def test_devices_read_together_what_one_reads_alone(which: str) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, which]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tiny.ROOT, env=tiny.environment(), check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == (3 if which == "griffin" else 4 + 2 * len(MORE))
    assert all(apart < TOLERANCE for apart in found.values()), found


def test_one_device_reads_it_all() -> None:
    assert jax.device_count() == 1
    assert of_tallies("griffin", True) < TOLERANCE


@pytest.mark.parametrize(
    ("model", "chunk", "said"),
    [
        ("mqa", 64, "global attention needs all earlier tokens on every device"),
        ("griffin", WINDOW - 1, f"attention has window={WINDOW}, more than the {WINDOW - 1} tokens of a device"),
        ("hawk", 2, "conv_width=4 reaches beyond the 2 tokens of a device"),
        ("hawk_complex", 64, "CGLRU cannot have its time split over devices"),
        ("gla", 64, "MatrixStateBlock cannot have its time split over devices"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_runs(model: str, chunk: int, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        refuse_unsplit(shrunk(model), chunk)
    assert str(refused.value) == f"devices=sequence with chunk={chunk}, but {said}; give devices=rows"


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    from evalkit.__main__ import main

    words = ["task=induction_heads", "model=mqa", "eval.devices=sequence", f"hydra.run.dir={tmp_path / 'run'}"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "global attention needs all earlier tokens on every device" in said
    assert not (tmp_path / "run").exists()


@settings(max_examples=50, deadline=None)
@given(memory=st.integers(1, 2**38), length=st.integers(1, 2**17), chunk=st.sampled_from([64, 256, 4096]))
def test_an_accelerator_reads_what_its_memory_holds_and_a_cpu_eight(memory: int, length: int, chunk: int) -> None:
    model, params = experiment("griffin").model, {"kernel": jax.ShapeDtypeStruct((1000, 1000), np.float32)}
    assert model is not None
    rows = partial(rows_at_once, model=model, params=params, length=length, chunk=chunk)
    with pytest.MonkeyPatch.context() as patch:
        assert (rows("auto", look=256), rows(5, look=2)) == (8, 5) == (least_rows("auto"), least_rows(5))
        patch.setattr(jax, "default_backend", lambda: "gpu")
        patch.setattr(streaming, "own_accelerator_bytes", lambda: memory)
        most = rows("auto", look=256)
        assert least_rows("auto") <= most, "what fits would be refused"
        assert most in {2**power for power in range(9)} and rows("auto", look=32) == min(most, 32)
        held = most * (model.cache_bytes(1, length) + chunk * 24 * 1000)
        assert most == 1 or held <= memory / 4
        assert most == 256 or 2 * held > memory / 4
