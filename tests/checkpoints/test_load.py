"""What a finished run is good for: its parameters, its rows, and another evaluation."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import evalkit
from evalkit import api
from evalkit.__main__ import main
from evalkit.checkpoints import pretrained
from evalkit.checkpoints.loading import named_folder
from evalkit.core import streams
from evalkit.core.contracts import Verdict
from evalkit.core.errors import UserError
from evalkit.session.session import Outcome
from evalkit.tasks.text.tokenizers import Numbers
from support import sharing, tiny

pytestmark = pytest.mark.usefixtures("shared", "blank_figures")
SEQUENCES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough steps that the two seeds, and other parameters than these, would score differently."""
    setting = ("seeds=2", "seed=4", "train.steps=60", "train.eval_every=60", "train.checkpoint_every=60")
    size = (f"train.validation_sequences={SEQUENCES}", "train.learning_rate=1e-2")
    few = ("model.pattern=[recurrent]", "eval.lengths=[16]")
    return tiny.trained(tmp_path_factory.mktemp("load") / "run", *setting, *size, *few)


def evaluated(folder: Path, *overrides: str) -> Path:
    """The folder of one more evaluation, which leaves everything else as it was."""
    before = tiny.files(folder)
    earlier = set((folder / "evaluate").glob("*"))
    assert tiny.evaluate(folder, overrides) == 0
    (new,) = set((folder / "evaluate").glob("*")) - earlier
    kept = {name: data for name, data in tiny.files(folder).items() if not name.startswith(f"evaluate/{new.name}/")}
    assert kept == before
    return new


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_loaded_parameters_reproduce_the_stored_validation(folder: Path, seed: int) -> None:
    run = evalkit.load(folder, seed)
    example = streams.held_out_batch(run.task, streams.VALIDATION, 0, SEQUENCES, run.task.length)
    logits, cache = jax.jit(run.apply)(run.params, example.tokens)
    assert cache is None
    example, logits = jax.device_get((example, logits))
    hits = (example.mask & (logits.argmax(axis=-1) == example.targets)).sum(axis=1)
    accuracy = float((hits / example.mask.sum(axis=1)).mean())
    (stored,) = (
        entry["value"]
        for entry in evalkit.rows(folder, split="validation", metric="accuracy")
        if (entry["seed"], entry["step"]) == (seed, 60)
    )
    assert stored == pytest.approx(accuracy)


@pytest.mark.slow
def test_the_first_seed_is_loaded_unless_another_is_asked_for(folder: Path) -> None:
    first, second, default = (evalkit.load(folder, *seed).params for seed in ((4,), (5,), ()))
    tiny.assert_identical(default, first)
    assert not np.array_equal(first["embedding"]["table"], second["embedding"]["table"])
    with pytest.raises(UserError, match=r"has no seed 6; it trained 4, 5"):
        evalkit.load(folder, 6)
    with pytest.raises(UserError, match=r"step=7 was not kept in .*; kept: 60"):
        evalkit.load(folder, step=7)


@pytest.mark.parametrize("given", [None, "", " ", 3])
def test_what_names_no_folder_is_one_line(given: Any) -> None:
    with pytest.raises(UserError, match=r"names no folder; give one, such as runs/"):
        named_folder(given)


@pytest.mark.parametrize("read", [evalkit.load, evalkit.rows, evalkit.resume, evalkit.evaluate])
def test_every_call_refuses_an_empty_name(read: Callable[[str], object]) -> None:
    with pytest.raises(UserError, match=r"names no folder"):
        read("")


@pytest.mark.slow
def test_a_loaded_run_says_what_it_is_and_goes_where_a_folder_goes(folder: Path) -> None:
    run = evalkit.load(folder, seed=5, step=60)
    apply, params, task = run
    assert (run.seed, run.step, run.folder, task, params) == (5, 60, folder, run.task, run.params)
    assert run.config["train"]["steps"] == 60
    assert repr(run) == f"<Run {folder}: griffin on induction_heads, seed 5, step 60, 2,080 parameters>"
    assert evalkit.rows(run) == evalkit.rows([str(folder)]) == evalkit.rows(folder)
    tokens, apply = jnp.arange(8).reshape(2, 4), jax.jit(apply)
    whole, _ = apply(params, tokens)
    cache, parts = run.init_cache(2, 4), []
    for at in range(4):
        logits, cache = apply(params, tokens[:, at : at + 1], None, cache)
        parts.append(logits)
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-5)


@pytest.mark.slow
def test_an_evaluation_from_python_takes_the_step_that_was_loaded(folder: Path, tmp_path: Path) -> None:
    before = jax.config.jax_default_matmul_precision, logging.raiseExceptions, sys.orig_argv
    loaded = evalkit.load(folder, 5)
    with ThreadPoolExecutor(1) as thread:  # which may not ask for signals
        found = thread.submit(evalkit.evaluate, loaded, eval={"lengths": [8]}, folder=tmp_path / "new").result()
    assert (jax.config.jax_default_matmul_precision, logging.raiseExceptions, sys.orig_argv) == before
    assert (found.folder, found.seed, found.step) == (tmp_path / "new", 5, 60)
    assert {entry["length"] for entry in evalkit.rows(found)} == {8}
    command = json.loads((found.folder / "environment.json").read_text())["command"]
    assert command == f"python -m evalkit evaluate={folder} step=60 'eval.lengths=[8]'"
    with pytest.raises(UserError, match="has results and no parameters"):
        evalkit.load(found)
    with pytest.raises(UserError, match="holds a run already"):
        evalkit.evaluate(folder, folder=found)
    with pytest.raises(UserError, match=r"metric='precision' is in none of these runs; there is accuracy, exact_match"):
        evalkit.rows(found, metric="precision")


@pytest.mark.slow
def test_a_signal_is_a_keyboard_interrupt_and_a_failed_verdict_an_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.session, "evaluate", lambda spec, step, target: Outcome(target, stopped_by=15))
    with pytest.raises(KeyboardInterrupt, match="call evaluate again"):
        evalkit.evaluate(folder, folder=tmp_path / "stopped")
    monkeypatch.setattr(api.session, "resume", lambda spec: Outcome(spec.folder, stopped_by=2))
    with pytest.raises(KeyboardInterrupt, match=r"evalkit\.resume\("):
        evalkit.resume(folder)
    monkeypatch.setattr(api.session, "evaluate", lambda spec, step, target: Outcome(target, verdict=Verdict("", 1)))
    with pytest.raises(UserError, match="does not hold"):
        evalkit.evaluate(folder, folder=tmp_path / "failed")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"task": "induction_heads", "model": "griffin", "train": {"stepz": 1}}, "'train.steps'"),
        ({"task": "induction_heads", "model": "griffin", "trian": {"steps": 1}}, "'train"),
        ({"task": "induction_heads", "model": "griffin", "settings": {"train.steps": "1"}}, "allowed: int"),
        ({"task": "induction_heads", "model": "griffin", "a b": 1}, "'a b' is no name"),
        ({"task": "induction_heads", "model": "griffin", "seed": object()}, "allowed: numbers, text"),
        ({"task": "induction_heads"}, "model is missing"),
        ({"task": "books", "checkpoint": "runs/x"}, "trained already"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_leaves_nothing(
    settings: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        evalkit.train(**settings)
    assert said in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_task_of_the_users_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    own = "_target_: evalkit.tasks.induction_heads.InductionHeads\nlength: 32\n"
    (tmp_path / "task" / "mine.yaml").write_text(own)
    with pytest.raises(UserError, match=r"the nearest valid one is 'task\.length'"):
        evalkit.train("mine", "griffin", config_dir=tmp_path, settings={"task.lenght": 16})
    with pytest.raises(UserError, match=r"config_dir='nowhere' is no folder"):
        evalkit.train("mine", "griffin", config_dir="nowhere")


def test_the_package_lists_its_public_names() -> None:
    assert dir(evalkit) == evalkit.__all__
    assert all(getattr(evalkit, name).__doc__ for name in evalkit.__all__)
    assert evalkit.__version__.count(".") == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: evalkit.train("induction_heads", "griffin", folder=""),
        lambda: evalkit.resume(""),
        lambda: evalkit.evaluate(" "),
        lambda: evalkit.compare("", folder=""),
        lambda: evalkit.compare(),
        lambda: evalkit.rows([]),
        lambda: evalkit.train("induction_heads", "griffin", config_dir=""),
    ],
)
def test_a_folder_without_a_name_is_refused(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"give (one|folders)"):
        call()
    assert not list(tmp_path.iterdir())


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        evalkit.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="it is no run"):
        evalkit.load(tmp_path)


@pytest.mark.slow
def test_an_evaluation_at_one_more_length_gives_the_same_numbers_at_the_others(folder: Path) -> None:
    """It leaves the run untouched, too."""
    new = evaluated(folder, "eval.lengths=[8,16]")
    entries = [entry for entry in evalkit.rows(new) if entry["metric"] == "accuracy"]
    lengths = [8, 8, 16, 16]
    assert [(entry["length"], entry["seed"]) for entry in entries] == list(zip(lengths, [4, 5] * 2, strict=True))
    assert {entry["step"] for entry in entries} == {60} and {entry["split"] for entry in entries} == {"test"}
    assert [entry["length"] for entry in tiny.results(new)["extrapolation"]] == lengths
    assert len(evalkit.rows(folder, new)) == len(evalkit.rows(folder)) + len(evalkit.rows(new))
    again = [entry for entry in tiny.rows(new) if entry["length"] == 16]
    assert again == [entry for entry in tiny.rows(folder) if entry["split"] == "test"]


@pytest.mark.slow
def test_another_task_of_the_same_vocabulary_can_be_evaluated(folder: Path) -> None:
    new = evaluated(folder, "task=selective_copying", "task.data_tokens=4", "eval.lengths=[16]")
    assert {entry["task"] for entry in evalkit.rows(new)} == {"selective_copying"}
    assert tiny.results(new)["task"] == "selective_copying"


@pytest.mark.slow
def test_a_task_of_another_vocabulary_is_refused(folder: Path) -> None:
    before = tiny.files(folder)
    with pytest.raises(UserError, match=r"vocab_size=32, but this run's model was trained on 16"):
        tiny.evaluate(folder, ["task.vocab_size=32"])
    assert tiny.files(folder) == before


@pytest.mark.slow
def test_a_run_on_tokens_loads_with_numbers_for_text_and_is_not_exported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = pretrained.load(str(folder), "bfloat16")
    assert isinstance(ours.tokenizer, Numbers) and ours.tokenizer.vocab_size == 16
    assert main(["export", str(folder), str(tmp_path / "out")]) == 2
    assert "bias=true" in capsys.readouterr().err and not (tmp_path / "out").exists()


def trained(words: Any, folder: Path, **more: Any) -> evalkit.Run:
    return evalkit.train(words, folder=folder, quiet=True, **more)


@pytest.mark.exhaustive
def test_words_a_dictionary_and_names_train_alike_at_once_in_threads_and_in_a_running_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two threads at once, then where an event loop runs, as in a notebook; nothing of the process is changed."""
    before = (sys.orig_argv[:], jax.config.jax_default_matmul_precision, logging.raiseExceptions)
    logger, absl = logging.getLogger("evalkit"), logging.getLogger("absl")
    levels = logger.level, logger.propagate, absl.level, absl.filters[:], signal.getsignal(signal.SIGINT)
    settings = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in tiny.OVERRIDES)}
    names = {"task": settings["task"], "model": settings["model"]}
    rest = {key: value for key, value in settings.items() if key not in names}
    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr("evalkit.configuration.experiment.model_of", sharing.BUILD)  # as a user's threads, share none
        one = threads.submit(trained, list(tiny.OVERRIDES), tmp_path / "words")
        two = threads.submit(trained, {**names, **rest}, tmp_path / "dictionary")
        runs = [one.result(), two.result()]

    async def in_a_loop() -> evalkit.Run:
        return trained(names["task"], tmp_path / "names", model=names["model"], settings=rest)

    runs.append(asyncio.run(in_a_loop()))
    assert (sys.orig_argv, jax.config.jax_default_matmul_precision, logging.raiseExceptions) == before
    after = logger.level, logger.propagate, absl.level, absl.filters[:], signal.getsignal(signal.SIGINT)
    assert after == levels
    for found in runs:
        assert tiny.rows(found.folder) == tiny.rows(runs[0].folder)
        tiny.assert_identical(found.params, runs[0].params)
    commands = {json.loads((found.folder / "history.json").read_text())[0]["command"] for found in runs}
    assert len(commands) == 3 and all(command.startswith("python -m evalkit task=") for command in commands)
