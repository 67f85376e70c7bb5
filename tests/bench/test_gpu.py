"""`benchmarks/gpu.sh` runs on a borrowed GPU, where neither pytest nor most of what evalkit needs is installed."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest

from evalkit.bench import stopwatch
from evalkit.parallel.devices import bytes_of
from support.shrunk import sampled

ROOT = Path(__file__).parents[2]
ABSENT = ["beartype", "datasets", "hydra", "lm_eval", "matplotlib", "omegaconf", "pytest", "scipy", "tqdm", "wandb"]
PARTS = """
import sys, threading
print("from a library")
print('{"part": "%s"}' % sys.argv[1])
if sys.argv[1] == "waits":
    threading.Event().wait()
if sys.argv[1] == "lacks":
    print('{"not_run": "needs hydra"}')
sys.exit(sys.argv[1] == "fails")
"""


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/gpu.py` with four parts that need no JAX."""
    import gpu

    (tmp_path / "parts.py").write_text(PARTS)
    monkeypatch.setattr(gpu, "COMMAND", [sys.executable, str(tmp_path / "parts.py")])
    monkeypatch.setattr(gpu, "SECONDS", {"fails": 60, "lacks": 60, "works": 60})
    return gpu


@pytest.mark.slow
def test_the_gpu_benchmark_imports_only_what_is_installed_there() -> None:
    code = f"import sys, gpu, gpu_parts; print(*[name for name in {ABSENT} if name in sys.modules])"
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests", "benchmarks"))
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert loaded.stdout.split() == []


def test_a_part_that_fails_leaves_the_rows_of_the_others(
    gpu: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main([str(out)]) == 1
    parts = json.loads(out.read_text())
    assert {name: part.get("failed") for name, part in parts.items()} == {
        "fails": "ended with 1", "lacks": "needs hydra", "works": None,
    }  # fmt: skip
    assert [part["rows"][0] for part in parts.values()] == [{"part": name} for name in parts]
    assert capsys.readouterr().out.splitlines()[-1].endswith("failed: fails, lacks")


def test_a_part_whose_time_is_over_is_ended(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SECONDS", {"waits": 1})
    out = tmp_path / "gpu.json"
    assert gpu.main([str(out)]) == 1
    assert "its time was over" in json.loads(out.read_text())["waits"]["failed"]


def test_every_part_has_its_time_within_eight_minutes() -> None:
    import gpu
    import gpu_parts

    assert list(gpu.SECONDS) == list(gpu_parts.PARTS) and sum(gpu.SECONDS.values()) <= 480


def test_programs_are_read_from_what_jax_logs(caplog: pytest.LogCaptureFixture) -> None:
    import gpu_parts

    with caplog.at_level(logging.WARNING), jax.log_compiles():
        jax.jit(lambda x: x + 3).lower(1).compile()
    (program,) = filter(None, map(gpu_parts.compiled_program, caplog.text.splitlines()))
    assert program[0] == "jit(<lambda>)" and program[1] > 0


@pytest.mark.slow
def test_the_model_has_the_size_of_its_name() -> None:
    import gpu_parts

    params = jax.eval_shape(gpu_parts._model("Griffin", "400M", window=128).init, jax.random.key(0))
    assert bytes_of(params) / 4 == pytest.approx(400e6, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["steps", "exact", "seeds", "lanes", "kernels", "reading", "decoding"], 7))
def test_a_part_has_its_rows_without_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `gpu.sh --small` tries it, in this process; README's command, the other part, is `test_docs`'s."""
    import gpu_parts

    monkeypatch.setattr(stopwatch, "ON_A_CPU", stopwatch.Yardstick(64, 2**12, 0.0))
    rows = list(gpu_parts.PARTS[name](True))
    assert rows and not any("not_run" in row for row in rows)
