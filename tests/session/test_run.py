"""One run: the files it promises, what it prints, and how it ends when the numbers or the disk give out."""

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evalkit
from evalkit.__main__ import main
from evalkit.checkpoints.loading import trainer_of
from evalkit.core.errors import UserError
from evalkit.core.rows import read
from evalkit.session import run
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer
from support import tiny

PROMISED = (
    "config.yaml",
    "metrics.jsonl",
    "results.json",
    "environment.json",
    "timing.json",
    "extrapolation.png",
    "training.png",
    "report.html",
    "checkpoints",
    "evalkit.log",
)
SELECTIVE = ("task=selective_copying", "task.length=16", "task.data_tokens=4")


def one_line(text: str) -> str:
    """What a user is told when a run fails: one line and no traceback."""
    assert text.startswith("evalkit: ") and text.count("\n") == 1, text
    return text


def advanced(trainer: Trainer, steps: int, dispatch: int) -> TrainState:
    """The state after `steps` steps, `dispatch` at a time."""
    state = trainer.init()
    (stage,) = trainer.training.stages(trainer.task.length)
    for _ in range(steps // dispatch):
        state, _ = trainer.advance(state, stage, dispatch)
    return state


@pytest.mark.slow
def test_a_run_leaves_what_it_promises_and_prints_one_json_object(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = tiny.finished(tiny.new(folder, "format=json"))
    assert ended.returncode == 0, ended.stderr
    assert [name for name in PROMISED if not (folder / name).exists()] == []
    (line,) = ended.stdout.splitlines()
    told = json.loads(line)
    assert told.pop("folder") == str(folder)
    assert told == tiny.results(folder)
    assert [entry["length"] for entry in told["extrapolation"]] == [16, 32]
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [4, 6]
    assert {"first_dispatch", "training", "evaluation"} <= set(json.loads((folder / "timing.json").read_text()))


@pytest.mark.slow
def test_lengths_above_the_longest_are_marked_not_run(tmp_path: Path) -> None:
    model = ("model=mqa", "model.width=16", "model.mlp_expansion=1", "model.pattern=[attention]")
    size = ("model.mixers.attention.head_dim=4", "eval.lengths=[16,32,64]", "eval.max_length=32")
    own = [text for text in tiny.OVERRIDES if not text.startswith(("model", "eval.lengths"))]
    experiment = tiny.config.built([*own, *model, *size])
    assert run.start(experiment, tmp_path / "run") == 0
    results = tiny.results(tmp_path / "run")
    assert [entry["length"] for entry in results["extrapolation"]] == [16, 32]
    (left_out,) = results["not_run"]
    assert left_out["length"] == 64 and "eval.max_length=32" in json.dumps(left_out)
    assert "64" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_task_with_an_answer_is_trained_and_evaluated(tmp_path: Path) -> None:
    own = [text for text in tiny.OVERRIDES if not text.startswith("task")]
    experiment = tiny.config.built([*own, *SELECTIVE])
    assert run.start(experiment, tmp_path / "run") == 0
    results = tiny.results(tmp_path / "run")
    assert results["answer_length"] == experiment.task.answer_length > 0
    assert [entry["length"] for entry in results["extrapolation"]] == [16, 32]


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    experiment = tiny.experiment("seeds=2", "seed=7")
    advance = Trainer.advance

    def poisoned(self: Trainer, state: TrainState, stage: Any, steps: int) -> Any:
        if int(state.step[0]) == 4:
            first, *rest = jax.tree.leaves(state.params)
            leaves = [first.at[1].set(jnp.nan), *rest]
            state = state._replace(params=jax.tree.unflatten(jax.tree.structure(state.params), leaves))
        return advance(self, state, stage, steps)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", poisoned)
        with pytest.raises(UserError, match=r"not finite at step 4, seed 8; checkpoint 4 is kept; lower") as failure:
            run.start(experiment, folder)
    assert failure.value.exit_code == 2 and "\n" not in str(failure.value)
    assert tiny.last_step(tiny.read(folder).rows) == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tiny.state(folder)))
    assert run.resume(folder, []) == 0
    assert int(tiny.state(folder).step[0]) == 6


@pytest.mark.parametrize("words", [["resume="], ["evaluate=''"], [*tiny.OVERRIDES, "hydra.run.dir="]])
def test_a_folder_without_a_name_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "= names no folder; give one" in one_line(capsys.readouterr().err)


@pytest.mark.slow
def test_a_learning_rate_far_too_high_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = tiny.finished(tiny.new(folder, "train.learning_rate=1e30", "seed=3"))
    assert ended.returncode == 2
    line = one_line(ended.stderr)
    assert "step " in line and "seed 3" in line and "train.learning_rate" in line
    assert not (folder / "results.json").exists()


@pytest.mark.slow
# What cannot be written: a row; a checkpoint.
@pytest.mark.parametrize(("size", "every"), [(2500, 6), (4000, 2)])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_space(tmp_path: Path, size: int, every: int) -> None:
    folder = tmp_path / "run"
    ended = tiny.finished(tiny.new(folder, f"train.checkpoint_every={every}"), largest_file=size)
    assert ended.returncode == 2
    line = one_line(ended.stderr)
    assert "cannot write" in line and "free space" in line and str(folder) in line
    resumed = tiny.finished(tiny.command(f"resume={folder}"))
    assert resumed.returncode == 0, resumed.stderr
    assert tiny.last_step(tiny.read(folder).rows) == 6
    assert len(tiny.rows(folder)) == len({json.dumps(entry) for entry in tiny.rows(folder)})


@pytest.mark.slow
def test_each_of_several_seeds_is_trained_as_if_alone() -> None:
    together = advanced(trainer_of(tiny.experiment("seeds=3", "seed=5", "train.steps=20")), 20, 2)
    for index in range(3):
        alone = advanced(trainer_of(tiny.experiment(f"seed={5 + index}", "train.steps=20")), 20, 2)
        mine, theirs = params_of(together, index), params_of(alone, 0)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-5), mine, theirs)
    first, second = (jax.tree.leaves(params_of(together, index))[0] for index in (0, 1))
    assert not np.allclose(first, second)


@pytest.mark.slow
def test_parameters_do_not_depend_on_the_steps_in_a_dispatch() -> None:
    def after(dispatch: int) -> TrainState:
        every = [f"train.{name}_every={dispatch}" for name in ("log", "eval", "checkpoint")]
        return advanced(trainer_of(tiny.experiment("train.steps=20", *every)), 20, dispatch)

    tiny.assert_identical(after(1), after(5))


@pytest.mark.slow
def test_a_run_ends_when_it_is_solved_often_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.session.loop.validate", lambda session, state, step: step != 2)
    folder = tiny.trained(tmp_path / "run", "train.steps=20", "train.stop_when_solved=2")
    assert Checkpoints(folder).latest == 6
    assert tiny.results(folder)["extrapolation"][0]["step"] == 6


@pytest.mark.slow
def test_wandb_offline_keeps_one_run_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name))
    folder = tmp_path / "run"
    ended = tiny.finished(tiny.new(folder, "wandb.mode=offline", "seeds=2"))
    assert ended.returncode == 0, ended.stderr
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 2
    assert list(json.loads((folder / "wandb.json").read_text())) == ["0", "1"]
    assert {entry["seed"] for entry in tiny.read(folder).rows} == {0, 1}


def test_kept_checkpoints_can_be_evaluated_and_others_are_named(tmp_path: Path) -> None:
    folder = tiny.trained(tmp_path / "run", "train.steps=10", "train.keep_every=4")
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [4, 8, 10]
    assert run.evaluate(folder, ["step=4", "eval.lengths=[16]"], tmp_path / "again") == 0
    assert {entry["step"] for entry in tiny.rows(tmp_path / "again") if entry["split"] == "test"} == {4}
    with pytest.raises(UserError, match=r"step=6 was not kept in .*; kept: 4, 8, 10"):
        run.evaluate(folder, ["step=6"], tmp_path / "none")
    with pytest.raises(UserError, match="step=four; give one number of training steps"):
        run.evaluate(folder, ["step=four"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_archive_is_read_as_the_run_is_but_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kept = tiny.trained(tmp_path / "run", "seeds=2"), tmp_path / "kept"
    assert main(["archive", str(folder), str(kept)]) == 0
    assert gzip.decompress((kept / "metrics.jsonl.gz").read_bytes()) == (folder / "metrics.jsonl").read_bytes()
    assert evalkit.rows(kept, metric="loss") and read(kept) == read(folder)
    assert sorted(path.name for path in (kept / "parameters").iterdir()) == ["seed-0.npz", "seed-1.npz"]
    for seed in (0, 1):
        one, other = (evalkit.load(place, seed).params for place in (folder, kept))
        tiny.assert_identical(one, other)
    for place in (folder, kept):
        assert run.evaluate(place, ["eval.lengths=[24]"], tmp_path / f"again-{place.name}") == 0
    assert tiny.rows(tmp_path / "again-run") == tiny.rows(tmp_path / "again-kept")
    before = (kept / "metrics.jsonl.gz").read_bytes()
    with pytest.raises(UserError, match="is an archive, which has no checkpoint to go on from"):
        run.resume(kept, [])
    with pytest.raises(UserError, match="is an archive, which has the last parameters alone"):
        run.evaluate(kept, ["step=2"], tmp_path / "none")
    assert (kept / "metrics.jsonl.gz").read_bytes() == before
    capsys.readouterr()
    assert main(["archive", str(folder), str(kept)]) == 2
    assert "is not empty; give another folder" in one_line(capsys.readouterr().err)
    assert main(["archive", str(folder), str(kept / "config.yaml")]) == 2
    assert "cannot write" in one_line(capsys.readouterr().err)
    assert main(["archive", str(folder), str(tmp_path / "at"), "--step", "4"]) == 0
    with np.load(tmp_path / "at" / "parameters" / "seed-1.npz") as arrays:
        assert arrays["step"] == 4
    (folder / "results.json").unlink()
    capsys.readouterr()
    assert main(["archive", str(folder), str(tmp_path / "half")]) == 2
    assert "is not finished; go on with it by resume=" in one_line(capsys.readouterr().err)
    (kept / "parameters" / "seed-1.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"seed-1.npz cannot be read"):
        evalkit.load(kept)


def test_the_times_of_all_sessions_add_up(tmp_path: Path) -> None:
    folder = tiny.trained(tmp_path / "run")
    first = json.loads((folder / "timing.json").read_text())
    (folder / "timing.json").write_text(json.dumps({**first, "training": 1000.0}))
    assert run.resume(folder, ["train.steps=8"]) == 0
    both = json.loads((folder / "timing.json").read_text())
    assert 1000 < both["training"] < 2000 and both["evaluation"] > first["evaluation"]
    assert both["first_dispatch"] == first["first_dispatch"]
