"""One run: the files it promises, what it prints, and how it ends when the numbers or the disk give out."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evalkit
from evalkit.__main__ import main
from evalkit.checkpoints import loading
from evalkit.checkpoints.pretrained import load_for_text
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.core.rows import read
from evalkit.session import run
from evalkit.training.checkpoints import Checkpoints
from evalkit.training.state import TrainState, params_of
from evalkit.training.trainer import Trainer
from support import tiny
from support.faults import one_line

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")

TWO = ("seeds=2", "train.keep_every=2")  # those of `two`, so that the programs are shared
SELECTIVE = ("task=selective_copying", "task.length=16", "task.data_tokens=4")


def advanced(trainer: Trainer, steps: int, dispatch: int) -> TrainState:
    """The state after `steps` steps, `dispatch` at a time."""
    state = trainer.init()
    (stage,) = trainer.training.stages(trainer.task.length)
    for _ in range(steps // dispatch):
        state, _ = trainer.advance(state, stage, dispatch)
    return state


@pytest.mark.exhaustive  # of the evaluation alone: tests/evaluations/test_extrapolate.py
def test_a_task_with_an_answer_is_trained_and_evaluated_but_not_above_the_longest_length(tmp_path: Path) -> None:
    """By a model whose cache grows with length, at the last length that it may have too."""
    model = ("model=mqa", "model.width=16", "model.mlp_expansion=1", "model.pattern=[attention]")
    size = ("model.mixers.attention.head_dim=4", "eval.lengths=[16,32,64]", "eval.max_length=32")
    own = [text for text in tiny.OVERRIDES if not text.startswith(("task", "model", "eval.lengths"))]
    spec = Spec.of([*own, *SELECTIVE, *model, *size], folder=tmp_path / "run")
    assert run.start(spec).exit_code == 0
    results = tiny.results(tmp_path / "run")
    assert results["answer_length"] == spec.experiment.task.answer_length > 0
    assert [entry["length"] for entry in results["extrapolation"]] == [16, 32]
    (left_out,) = results["not_run"]
    assert left_out["length"] == 64 and "eval.max_length=32" in json.dumps(left_out)
    assert "64" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    advance = Trainer.advance

    def poisoned(self: Trainer, state: TrainState, stage: Any, steps: int) -> Any:
        if int(state.step[0]) == 4:
            first, *rest = jax.tree.leaves(state.params)
            leaves = [first.at[1].set(jnp.nan), *rest]
            state = state._replace(params=jax.tree.unflatten(jax.tree.structure(state.params), leaves))
        return advance(self, state, stage, steps)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", poisoned)
        with pytest.raises(UserError, match=r"at step 4, seed 1: .*; checkpoint 4 is kept; lower") as failure:
            tiny.start(folder, *TWO)
    assert failure.value.exit_code == 2 and "\n" not in str(failure.value)
    assert tiny.last_step(tiny.read(folder).rows) == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tiny.state(folder)))
    assert tiny.resume(folder, []) == 0
    assert int(tiny.state(folder).step[0]) == 6


def test_a_run_that_another_process_began_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this one compiled, another wrote its rows there and ended: its lock is free."""
    rows = tmp_path / "run" / "metrics.jsonl"

    def fresh(*_: object) -> None:
        rows.parent.mkdir()
        rows.write_text("of another process")

    monkeypatch.setattr(run, "_fresh", fresh)
    with pytest.raises(UserError, match="holds a run already"):
        tiny.start(tmp_path / "run")
    assert rows.read_text() == "of another process"


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/9999"])
def test_files_that_no_run_wrote_are_not_replaced(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of another project, in whose folder a run is begun, or of a run whose record was deleted."""
    strange = tmp_path / "run" / name
    strange.parent.mkdir(parents=True)
    strange.write_text("mine: 1")
    monkeypatch.setattr(run, "_fresh", Mock(side_effect=AssertionError("it trains")))
    with pytest.raises(UserError, match="is there, and there is no run to go on with"):
        tiny.start(tmp_path / "run")
    assert strange.read_text() == "mine: 1"


def test_memory_that_ran_out_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a search or an experiment goes on with its other runs; another error of XLA is no user's."""
    said = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."
    monkeypatch.setattr(run, "_fresh", Mock(side_effect=jax.errors.JaxRuntimeError(said)))
    with pytest.raises(UserError, match=r"out of memory \(RESOURCE_EXHAUSTED.*\); give a smaller train.microbatch="):
        tiny.start(tmp_path / "run")
    monkeypatch.setattr(run, "_fresh", Mock(side_effect=jax.errors.JaxRuntimeError("INTERNAL: a bug")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a bug"):
        tiny.start(tmp_path / "run")


OF_NEW_RUNS = ("hydra.run.dir=", "hydra.run.dir=[a]", "hydra.run.dir=null", "hydra.sweep.dir={a: 1}")


@pytest.mark.parametrize("word", ["resume=", "evaluate=''", *OF_NEW_RUNS])
def test_a_folder_without_a_name_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*tiny.OVERRIDES, word] if word in OF_NEW_RUNS else [word]) == 2
    assert f"{word} names no folder; give one" in one_line(capsys.readouterr().err)


@pytest.mark.slow
def test_each_of_several_seeds_is_trained_as_if_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    together = advanced(loading.trainer_of(tiny.experiment(*TWO)), 6, 2)
    by_itself = loading.trainer_of(tiny.experiment())
    for index in range(2):
        monkeypatch.setattr(by_itself, "seeds", np.asarray([index], np.uint32))  # an argument of its program
        mine, theirs = params_of(together, index, "last"), params_of(advanced(by_itself, 6, 2), 0, "last")
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-5), mine, theirs)
    first, second = (jax.tree.leaves(params_of(together, index, "last"))[0] for index in (0, 1))
    assert not np.allclose(first, second)


@pytest.mark.slow
def test_parameters_do_not_depend_on_the_steps_in_a_dispatch() -> None:
    def after(dispatch: int) -> TrainState:
        every = [f"train.{name}_every={dispatch}" for name in ("log", "eval", "checkpoint")]
        return advanced(loading.trainer_of(tiny.experiment(*every)), 20, dispatch)

    tiny.assert_identical(after(1), after(5))


@pytest.mark.parametrize(("backend", "working", "lines"), [("gpu", 5, 1), ("gpu", 8, 0), ("cpu", 5, 0)])
def test_accelerators_without_work_are_told(
    backend: str, working: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    launch = Mock()
    launch.trainer.placement.mesh.size = working
    said = run._idle(launch)
    assert len(said) == lines and all(line.startswith("5 of 8 devices work") for line in said)


@pytest.mark.slow
def test_a_run_ends_when_it_is_solved_often_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalkit.session.loop._all_right", lambda rows, length: rows[0]["step"] != 2)
    folder = tiny.trained(tmp_path / "run", "train.steps=10", "train.stop_when_solved=2")
    assert Checkpoints(folder).latest == 6
    assert tiny.results(folder)["extrapolation"][0]["step"] == 6
    assert tiny.resume(folder, ["train.steps=12", "eval.lengths=[16]"]) == 0
    assert tiny.results(folder)["step"] == 10  # solved twice more


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds with every checkpoint, to be read."""
    return tiny.trained(tmp_path_factory.mktemp("two") / "run", *TWO)


@pytest.mark.slow
def test_kept_checkpoints_can_be_evaluated_and_others_are_named(two: Path, tmp_path: Path) -> None:
    """The two newest ones are kept anyway."""
    folder = two
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [2, 4, 6]
    assert tiny.evaluate(folder, ["step=2", "eval.lengths=[16]"], tmp_path / "again") == 0
    assert {entry["step"] for entry in tiny.rows(tmp_path / "again") if entry["split"] == "test"} == {2}
    with pytest.raises(UserError, match=r"step=3 was not kept in .*; kept: 2, 4, 6"):
        tiny.evaluate(folder, ["step=3"], tmp_path / "none")
    with pytest.raises(UserError, match="step=four; give one number of training steps"):
        tiny.evaluate(folder, ["step=four"], tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_an_archive_is_read_as_the_run_is_but_not_gone_on_with(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kept = two, tmp_path / "kept"
    assert main(["archive", str(folder), str(kept)]) == 0
    assert gzip.decompress((kept / "metrics.jsonl.gz").read_bytes()) == (folder / "metrics.jsonl").read_bytes()
    assert evalkit.rows(kept, metric="loss") and read(kept) == read(folder)
    assert sorted(path.name for path in (kept / "parameters").iterdir()) == ["seed-0.npz", "seed-1.npz"]
    for seed in (0, 1):
        one, other = (evalkit.load(place, seed).params for place in (folder, kept))
        tiny.assert_identical(one, other)
    for place in (folder, kept):
        assert tiny.evaluate(place, ["eval.lengths=[16]"], tmp_path / f"again-{place.name}") == 0
    assert tiny.rows(tmp_path / "again-run") == tiny.rows(tmp_path / "again-kept")
    before = (kept / "metrics.jsonl.gz").read_bytes()
    with pytest.raises(UserError, match="is an archive, which has no checkpoint to go on from"):
        tiny.resume(kept, [])
    with pytest.raises(UserError, match="is an archive, which has the last parameters alone"):
        tiny.evaluate(kept, ["step=2"], tmp_path / "none")
    assert (kept / "metrics.jsonl.gz").read_bytes() == before
    capsys.readouterr()
    assert main(["archive", str(folder), str(kept)]) == 2
    assert "is not empty; give another folder" in one_line(capsys.readouterr().err)
    assert main(["archive", str(folder), str(kept / "config.yaml")]) == 2
    assert "cannot write" in one_line(capsys.readouterr().err)
    assert main(["archive", str(folder), str(tmp_path / "at"), "--step", "4"]) == 0
    assert "its record and figures are of the whole training" in capsys.readouterr().out
    with np.load(tmp_path / "at" / "parameters" / "seed-1.npz") as arrays:
        assert arrays["step"] == 4
    (folder / "results.json").unlink()
    capsys.readouterr()
    assert main(["archive", str(folder), str(tmp_path / "half")]) == 2
    assert "is not finished; go on with it by resume=" in one_line(capsys.readouterr().err)
    (kept / "parameters" / "seed-1.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"parameters/seed-1.npz is not what was written: its SHA-256 differs"):
        evalkit.load(kept)


def test_a_run_says_what_its_model_costs(tiny_run: Path) -> None:
    model, _ = tiny.experiment().trained
    costs = {"cache_bytes": {"32": model.cache_bytes(1, 32)}, "flops_per_token": round(model.flops(32) / 32)}
    assert {name: getattr(read(tiny_run).header, name) for name in costs} == costs
    results, page = tiny.results(tiny_run), (tiny_run / "report.html").read_text()
    assert {name: results[name] for name in costs} == costs
    assert f"{costs['flops_per_token']:,} FLOPs a token" in page


@pytest.mark.slow
def test_the_times_of_all_sessions_add_up(tiny_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    first = json.loads((folder / "timing.json").read_text())
    (folder / "timing.json").write_text(json.dumps({**first, "training": 1000.0}))
    assert tiny.resume(folder, ["train.steps=10"]) == 0
    both = json.loads((folder / "timing.json").read_text())
    assert 1000 < both["training"] < 2000 and both["evaluation"] > first["evaluation"]
    assert both["first_dispatch"] == first["first_dispatch"]


def test_a_run_that_knows_no_text_is_no_checkpoint_of_a_language_model(tiny_run: Path) -> None:
    with pytest.raises(UserError, match="has 16 tokens, which stand for no text"):
        load_for_text(str(tiny_run))
