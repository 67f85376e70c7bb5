"""The wheel in a folder that has its own `models/`, `tasks/` and `kernels/`: a run, `load`, a user's own mixer."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from support import tiny

MIXER = '''
"""A mixer that remembers nothing: each token by itself."""
from flax import nnx


class Mine(nnx.Module):
    window = 1

    def __init__(self, width, *, rngs):
        self.map = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x, positions, cache):
        return self.map(x), cache

    def init_cache(self, batch, length):
        return ()
'''
MODEL = """
# A mixer of my own.
_target_: evalkit.models.build
_partial_: true
width: 16
mlp_expansion: 1
pattern: [mine]
mixers:
  mine: {_target_: models.mine.Mine, _partial_: true}
"""
PROGRAM = """
import evalkit, json, sys
from evalkit.__main__ import main
assert main(sys.argv[1:]) == 0
apply, params, task = evalkit.load("out")
bare = [name for name in sys.modules if name in ("tasks", "kernels")]
print(json.dumps([evalkit.__file__, sorted(params), task.length, len(evalkit.rows("out")), bare]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, tiny.ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_installs_one_package(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"evalkit"}
    for name in (
        "models/mixers/rglru.py",
        "tasks/induction_heads.py",
        "kernels/scan.py",
        "conf/config.yaml",
        "py.typed",
    ):
        assert (site / "evalkit" / name).is_file(), name
    assert not [path for path in site.rglob("*") if path.is_symlink()]


@pytest.mark.slow
def test_it_runs_beside_packages_of_the_same_names(site: Path, tmp_path: Path) -> None:
    for name in ("models", "tasks", "kernels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "models" / "mine.py").write_text(MIXER)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(MODEL.lstrip())
    environment = {**tiny.environment(), "PYTHONPATH": str(site)}
    settings = [*(text for text in tiny.OVERRIDES if not text.startswith("model")), "eval.lengths=[32]"]
    command = [sys.executable, "-c", PROGRAM, "--config-dir", "conf", "model=mine", *settings, "hydra.run.dir=out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place, params, length, rows, bare = json.loads(done.stdout.splitlines()[-1])
    assert place.startswith(str(site)) and "blocks" in params and length == 32 and rows > 0
    assert bare == [], "a package of the user's own was taken for one of ours"
    assert os.listdir(tmp_path / "out")
