"""`benchmarks/gpu.sh` runs on a borrowed GPU, where only JAX, Flax, Optax, jaxtyping, NumPy and Rich are installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ABSENT = ["beartype", "datasets", "hydra", "lm_eval", "matplotlib", "omegaconf", "orbax", "scipy", "tqdm", "wandb"]


def test_the_gpu_benchmark_imports_only_what_is_installed_there() -> None:
    code = f"import sys, gpu; print(*[name for name in {ABSENT} if name in sys.modules])"
    path = os.pathsep.join(str(ROOT / folder) for folder in (".", "tests", "benchmarks"))
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert loaded.stdout.split() == []
