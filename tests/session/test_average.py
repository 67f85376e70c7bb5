"""What a run is evaluated by when it keeps an average of its parameters, and that it resumes as any other does."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import evalkit
from evalkit.__main__ import main
from evalkit.core.errors import UserError
from evalkit.core.rows import read, value
from support import tiny
from support.interrupted import StopAfterOneDispatch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared", "blank_figures")]

OTHER = (
    "train.average=0.9",
    "train.schedule=wsd",
    "train.optimizer=amsgrad",
    "train.label_smoothing=0.1",
    "train.state_passing=0.25",
    "train.stream_facts=0.5",
    "model.mixers.recurrent.conv_init=0.05",
)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.trained(tmp_path_factory.mktemp("averaged") / "run", *OTHER)


def test_a_stop_after_every_dispatch_changes_nothing(
    averaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("evalkit.session.session.Watch", StopAfterOneDispatch)
        assert tiny.start(folder, *OTHER) == 130
        assert tiny.resume(folder, []) == 130
    assert tiny.resume(folder, []) == 0
    assert tiny.rows(folder) == tiny.rows(averaged)
    tiny.assert_identical(tiny.state(folder), tiny.state(averaged))


def test_the_average_is_evaluated_and_the_last_parameters_beside_it(averaged: Path, tmp_path: Path) -> None:
    last = tmp_path / "last"
    assert tiny.evaluate(averaged, ["parameters=last"], last) == 0
    assert any(note.startswith("trained with state passing: ") for note in read(averaged).header.notes)
    said = {folder: [note for note in read(folder).header.notes if "parameters" in note] for folder in (averaged, last)}
    assert said[averaged] == ["the average of the parameters (decay 0.9) is evaluated"]
    assert said[last] == ["the last parameters are evaluated, not their average (decay 0.9)"]
    losses = [
        [value(entry) for entry in read(folder).rows if entry["metric"] == "loss" and entry["split"] == "test"]
        for folder in (averaged, last)
    ]
    assert len(losses[0]) == len(losses[1]) and losses[0] != losses[1]
    state = tiny.state(averaged)
    loaded = evalkit.load(averaged)
    tiny.assert_identical(loaded.params, jax.tree.map(lambda leaf: leaf[0], state.average))
    moved = jax.tree.map(lambda one, other: float(np.abs(one - other).max()), state.average, state.params)
    assert max(jax.tree.leaves(moved)) > 1e-5


def test_an_archive_keeps_what_was_evaluated_and_refuses_the_other(averaged: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert main(["archive", str(averaged), str(kept)]) == 0
    tiny.assert_identical(evalkit.load(kept).params, evalkit.load(averaged).params)
    with pytest.raises(UserError, match="has the average parameters alone; give the run itself"):
        tiny.evaluate(kept, ["parameters=last"], tmp_path / "out")


def test_a_run_from_before_averages_goes_on(tiny_run: Path, tmp_path: Path) -> None:
    """Its configuration names none of the settings of today, and its checkpoint has no place for an average."""
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    tree = json.loads((folder / "checkpoints" / "6" / "state" / "_METADATA").read_text())["tree_metadata"]
    assert {entry["key_metadata"][0]["key"] for entry in tree.values()} == {"params", "optimizer", "step"}
    text = (folder / "config.yaml").read_text()
    new = ("parameters:", *(f"  {name}:" for name in ("optimizer", "label_smoothing", "average", "state_passing")))
    new = (*new, "  stream_facts:")
    lines = [line for line in text.splitlines() if not line.startswith(new)]
    assert len(lines) == len(text.splitlines()) - len(new)
    (folder / "config.yaml").write_text("\n".join(lines) + "\n")
    assert tiny.resume(folder, ["train.steps=8"]) == 0
    assert tiny.last_step(read(folder).rows) == 8
