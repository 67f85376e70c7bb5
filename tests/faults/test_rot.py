"""What is not as it was written is never loaded, one line says so, and what is whole is taken in its place."""

import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import orbax.checkpoint as ocp
import pytest
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask, Task

from evalkit.__main__ import main
from evalkit.checkpoints import loading
from evalkit.core.errors import UserError
from evalkit.disk import sums
from evalkit.lm_eval import prompts
from evalkit.tasks.text import corpus
from evalkit.tasks.text.documents import Document
from evalkit.tasks.text.tokenizers import Bytes
from evalkit.training import checkpoints
from evalkit.training.checkpoints import Checkpoints
from support import faults, tiny

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("shared", "blank_figures")]
NEWEST, BEFORE = 6, 4


@pytest.fixture
def copy(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What a user is warned of, since it was last asked."""

    def said() -> list[str]:
        told = [record for record in caplog.records if record.name.startswith("evalkit.")]
        found = [record.getMessage() for record in told if record.levelno >= logging.WARNING]
        caplog.clear()
        return found

    with caplog.at_level(logging.WARNING, "evalkit"):
        yield said


# All of a checkpoint's twenty files take sixty trials for the three kinds of damage, with the bit at a random place.
@pytest.mark.parametrize("trials", faults.counts(20, 200))
def test_a_damaged_checkpoint_is_never_loaded_and_the_one_before_is(copy: Path, trials: int, lines: Any) -> None:
    trainer = loading.trainer_of(tiny.experiment())
    kept_as = trainer.abstract, trainer.step.layout
    kept = Checkpoints(copy)
    good = kept.at(BEFORE, *kept_as)
    rot = faults.Rot(copy / "checkpoints" / str(NEWEST))
    assert len(rot.files) >= 12 and any(path.name == sums.FILE for path in rot.files)
    for _ in range(trials):
        with rot.one() as damage:
            restored = kept.restore(*kept_as)
            assert restored is not None and restored.step == BEFORE, damage
            (line,) = lines()
            assert line.startswith(f"checkpoint {NEWEST} in ") and "\n" not in line, damage
            with pytest.raises(UserError, match=f"checkpoint {NEWEST} in .* cannot be read .*; give another step"):
                kept.at(NEWEST, *kept_as)
        tiny.assert_identical(restored.state, good)
    whole = kept.restore(*kept_as)
    assert whole is not None and whole.step == NEWEST and not lines()


def test_a_checkpoint_of_before_there_were_sums_is_loaded(tmp_path: Path, lines: Any) -> None:
    """As Orbax's manager wrote it."""
    trainer = loading.trainer_of(tiny.experiment())
    state, meta = trainer.init(), {"rows": 3, "solved": 0, "tokens": 0}
    parts = {name: part for name, part in state._asdict().items() if part is not None}
    items = ocp.args.Composite(state=ocp.args.StandardSave(parts), meta=ocp.args.JsonSave(meta))
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(2, args=items)
    restored = Checkpoints(tmp_path).restore(trainer.abstract, trainer.step.layout)
    assert restored is not None and restored.step == 2 and restored.meta == meta and not lines()
    tiny.assert_identical(restored.state, state)


def test_a_checkpoint_of_another_model_as_it_seems_is_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    """A write that was lost behind right sums looks like that, too."""
    trainer = loading.trainer_of(tiny.experiment())
    kept, read = Checkpoints(tmp_path), Checkpoints._read
    for step in (2, 4):
        kept.save(trainer.init(), step, {"rows": 0})

    def unlike(steps: tuple[int, ...]) -> None:
        def opened(self: Checkpoints, step: int, *given: Any) -> Any:
            if step in steps:
                raise UserError(f"{step} is whole, but its parameters are not those of the model now")
            return read(self, step, *given)

        monkeypatch.setattr(Checkpoints, "_read", opened)

    unlike((4,))
    restored = kept.restore(trainer.abstract, trainer.step.layout)
    assert restored is not None and restored.step == 2 and len(lines()) == 1
    unlike((2, 4))
    with pytest.raises(UserError, match="4 is whole, but its parameters"):
        kept.restore(trainer.abstract, trainer.step.layout)


def test_an_older_checkpoint_goes_only_once_the_new_one_was_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = loading.trainer_of(tiny.experiment())
    kept, state, meta = Checkpoints(tmp_path), trainer.init(), {"rows": 0}
    for step in (2, 4, 6):
        kept.save(state, step, meta)
    assert kept.steps == [6, 4]

    def unlike(folder: Path) -> bool:
        raise sums.Damaged("state/d/0 is not what was written: its SHA-256 differs")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.sums, "check", unlike)
        with pytest.raises(UserError, match=r"cannot write checkpoint 8 in .*: state/d/0 is not what was written"):
            kept.save(state, 8, meta)
    assert kept.steps == [6, 4] and sorted(path.name for path in kept.path.iterdir()) == ["4", "6"]


def test_after_a_write_that_failed_the_processs_own_hook_hears_of_other_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, heard = loading.trainer_of(tiny.experiment()), []
    kept = Checkpoints(tmp_path)
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: heard.append(str(failure.exc_value)))
    with monkeypatch.context() as patched:
        patched.setattr(kept._orbax, "save", Mock(side_effect=OSError("no space left on device")))
        with pytest.raises(UserError, match=r"cannot write checkpoint 2 in .*: no space left on device; free space"):
            kept.save(trainer.init(), 2, {"rows": 0})
    for said in ("Event loop is closed", "of another library"):
        sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(said)))
    assert heard == ["of another library"]


def test_a_checkpoint_too_many_goes_when_the_run_goes_on(copy: Path) -> None:
    """A kill came between the last checkpoint and the removal of older ones; nothing is saved after it."""
    shutil.copytree(copy / "checkpoints" / str(BEFORE), copy / "checkpoints" / "2")
    (copy / "results.json").unlink()
    assert main(["resume", str(copy)]) == 0
    assert Checkpoints(copy).steps == [NEWEST, BEFORE]


@pytest.mark.parametrize("trials", faults.counts(15, 60))
def test_a_damaged_archive_is_refused_in_one_line(copy: Path, tmp_path: Path, trials: int) -> None:
    kept, experiment = tmp_path / "kept", tiny.experiment()
    loading.archive(copy, kept)
    whole, _ = loading.restore(experiment, kept)
    rot = faults.Rot(kept)
    for _ in range(trials):
        with rot.one() as damage, pytest.raises(UserError) as refusal:
            loading.restore(experiment, kept)
        assert "damaged" in str(refusal.value) or "is missing" in str(refusal.value), damage
        assert "\n" not in str(refusal.value), damage
    tiny.assert_identical(loading.restore(experiment, kept)[0], whole)
    (kept / sums.FILE).unlink()
    with np.load(kept / "parameters" / "seed-0.npz") as arrays:
        of_before = {name: arrays[name] for name in arrays if name != "summed"}
    np.savez_compressed(kept / "parameters" / "seed-0.npz", **of_before)
    tiny.assert_identical(loading.restore(experiment, kept)[0], whole)


@pytest.mark.parametrize("trials", faults.counts(15, 60))
def test_damaged_tokens_are_never_read_and_made_again(tmp_path: Path, trials: int, lines: Any) -> None:
    def texts() -> list[Document]:
        return [Document(name, name * 50) for name in ("one ", "two ", "three ")]

    tokens = corpus.build(texts, Bytes(), tmp_path).tokens.tolist()
    (place,) = tmp_path.glob("[!.]*")
    rot = faults.Rot(place)
    for _ in range(trials):
        with rot.one() as damage:
            assert corpus.load(place) is None, damage
            assert len(lines()) <= 1, damage
            again = tmp_path / "again"
            shutil.copytree(place, again / place.name)
            assert corpus.build(texts, Bytes(), again).tokens.tolist() == tokens, damage
            assert corpus.load(again / place.name) is not None and len(set(lines())) <= 1, damage
            shutil.rmtree(again)
    assert corpus.load(place) is not None


def task_of(texts: list[str], template: str = "{{text}}") -> Task:
    """A task of lm-eval that asks for the likelihood of each text."""
    config = {
        "task": "mine",
        "custom_dataset": lambda **_: {"test": Dataset.from_list([{"text": text} for text in texts])},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": template,
        "num_fewshot": 0,
        "metric_list": [{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}],
    }
    return ConfigurableTask(config=config)


def test_prompts_are_those_of_the_data_the_template_and_the_model(tmp_path: Path, lines: Any) -> None:
    """lm-eval's own cache gives the first task's prompts to the second."""
    building = prompts.keeping(Task.build_all_requests, tmp_path, ["a model"])

    def asked(task: Task, **how: Any) -> list[str]:
        building(task, cache_requests=True, **how)
        return [instance.args[0] for instance in task.instances]

    assert asked(task_of(["a", "b"])) == ["a", "b"] == asked(task_of(["a", "b"]))
    assert len(list(tmp_path.iterdir())) == 1
    assert asked(task_of(["a", "c"])) == ["a", "c"]
    assert asked(task_of(["a", "b"], "{{text}}!")) == ["a!", "b!"]
    assert asked(task_of(["a", "b"]), limit=1) == ["a"]
    prompts.keeping(Task.build_all_requests, tmp_path, ["another"])(task_of(["a", "b"]), cache_requests=True)
    assert len(list(tmp_path.iterdir())) == 5 and not lines()


@pytest.mark.parametrize("trials", faults.counts(15, 60))
def test_damaged_prompts_are_never_asked_and_made_again(tmp_path: Path, trials: int, lines: Any) -> None:
    asked = [Instance("loglikelihood", {"text": "a b"}, ("a", " b"), 0, ("mine", number, 1)) for number in range(3)]
    prompts.save(tmp_path / "kept.json", asked)
    rot = faults.Rot(tmp_path)
    assert prompts.load(tmp_path / "kept.json") == asked
    for _ in range(trials):
        with rot.one() as damage:
            assert prompts.load(tmp_path / "kept.json") is None, damage
            assert len(lines()) <= 1, damage
