"""What a finished run is good for: its parameters, its rows, and another evaluation."""

from pathlib import Path

import numpy as np
import pytest

import evalkit
from evalkit.core import streams
from evalkit.core.errors import UserError
from evalkit.core.rows import value
from evalkit.session import run
from support import tiny

SEQUENCES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough steps that the two seeds, and other parameters than these, would score differently."""
    setting = ("seeds=2", "seed=4", "train.steps=60", "train.eval_every=60", "train.checkpoint_every=60")
    size = (f"train.validation_sequences={SEQUENCES}", "train.learning_rate=1e-2")
    return tiny.trained(tmp_path_factory.mktemp("load") / "run", *setting, *size)


def evaluated(folder: Path, *overrides: str) -> Path:
    """The folder of one more evaluation, which leaves everything else as it was."""
    before = tiny.files(folder)
    earlier = set((folder / "evaluate").glob("*"))
    assert run.evaluate(folder, overrides) == 0
    (new,) = set((folder / "evaluate").glob("*")) - earlier
    kept = {name: data for name, data in tiny.files(folder).items() if not name.startswith(f"evaluate/{new.name}/")}
    assert kept == before
    return new


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_loaded_parameters_reproduce_the_stored_validation(folder: Path, seed: int) -> None:
    apply, params, task = evalkit.load(folder, seed)
    example = streams.held_out_batch(task, streams.VALIDATION, 0, SEQUENCES, task.length)
    logits, cache = apply(params, example.tokens)
    assert cache is None
    hits = (example.mask & (logits.argmax(axis=-1) == example.targets)).sum(axis=1)
    accuracy = float((hits / example.mask.sum(axis=1)).mean())
    stored = {
        entry["metric"]: value(entry)
        for entry in evalkit.rows(folder)
        if (entry["split"], entry["seed"], entry["step"]) == ("validation", seed, 60)
    }
    assert stored["accuracy"] == pytest.approx(accuracy)


@pytest.mark.slow
def test_the_first_seed_is_loaded_unless_another_is_asked_for(folder: Path) -> None:
    first, second, default = (evalkit.load(folder, *seed)[1] for seed in ((4,), (5,), ()))
    tiny.assert_identical(default, first)
    assert not np.array_equal(first["embedding"]["table"], second["embedding"]["table"])
    with pytest.raises(UserError, match=r"has no seed 6; it trained 4, 5"):
        evalkit.load(folder, 6)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        evalkit.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="it is no run"):
        evalkit.load(tmp_path)


@pytest.mark.slow
def test_the_same_evaluation_again_gives_the_same_numbers(folder: Path) -> None:
    def tested(where: Path) -> list[dict[str, object]]:
        return [entry for entry in tiny.rows(where) if entry["split"] == "test"]

    assert tested(evaluated(folder)) == tested(folder)


@pytest.mark.slow
def test_an_evaluation_at_other_lengths_leaves_the_run_untouched(folder: Path) -> None:
    new = evaluated(folder, "eval.lengths=[8,64]")
    entries = [entry for entry in evalkit.rows(new) if entry["metric"] == "accuracy"]
    assert [(entry["length"], entry["seed"]) for entry in entries] == [(8, 4), (8, 5), (64, 4), (64, 5)]
    assert {entry["step"] for entry in entries} == {60} and {entry["split"] for entry in entries} == {"test"}
    assert [entry["length"] for entry in tiny.results(new)["extrapolation"]] == [8, 8, 64, 64]
    assert len(evalkit.rows(folder, new)) == len(evalkit.rows(folder)) + len(evalkit.rows(new))


@pytest.mark.slow
def test_another_task_of_the_same_vocabulary_can_be_evaluated(folder: Path) -> None:
    new = evaluated(folder, "task=selective_copying", "task.data_tokens=4")
    assert {entry["task"] for entry in evalkit.rows(new)} == {"selective_copying"}
    assert tiny.results(new)["task"] == "selective_copying"


def test_a_task_of_another_vocabulary_is_refused(folder: Path) -> None:
    before = tiny.files(folder)
    with pytest.raises(UserError, match=r"vocab_size=32, but this run's model was trained on 16"):
        run.evaluate(folder, ["task.vocab_size=32"])
    assert tiny.files(folder) == before
