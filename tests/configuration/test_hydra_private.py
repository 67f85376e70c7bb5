"""What is private in Hydra is where this version has it, and composing leaves the process as it was."""

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import evalkit
from evalkit.configuration import hydra_private
from evalkit.configuration.composition import compose


@pytest.mark.parametrize(
    ("found", "settings"),
    [
        (hydra_private.ConfigLoaderImpl.load_configuration, {"config_name", "overrides", "run_mode"}),
        (hydra_private.create_config_search_path, {"search_path_dir"}),
        (hydra_private.version.setbase, {"ver"}),
    ],
)
def test_what_is_private_in_hydra_takes_what_it_took(found: object, settings: set[str]) -> None:
    assert callable(found), "Hydra has moved it: change evalkit/configuration/hydra_private.py"
    assert set(inspect.signature(found).parameters) >= settings


def test_one_file_names_what_is_private_in_hydra() -> None:
    package = Path(evalkit.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert [name for name, text in texts.items() if re.search(r"hydra\._internal", text)] == ["hydra_private.py"]


def test_composing_touches_nothing_that_another_thread_could_see() -> None:
    before = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    words = [[f"task={task}", "model=hawk", f"seed={seed}"] for seed, task in enumerate(("mqar", "copying") * 4)]
    with ThreadPoolExecutor(4) as threads:
        composed = list(threads.map(compose, words))
    assert [(one.config.task_name, one.config.seed) for one in composed] == [(w[0][5:], i) for i, w in enumerate(words)]
    assert (GlobalHydra.instance().hydra, HydraConfig.instance().cfg) == before


def test_a_value_may_name_what_hydra_knows() -> None:
    words = ["task=mqar", "model=hawk", "wandb.name='${hydra:runtime.choices.model} on ${hydra:job.name}'"]
    assert compose(words).config.wandb.name == "hawk on evalkit"
    assert compose([*words, "hydra.run.dir='out/${hydra:job.name}'"]).folder == Path("out/evalkit")


def test_what_a_run_makes_of_a_composition_is_not_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (compose(["task=mqar", "model=hawk", *words]) for words in (["train.steps=1"], []))
    assert (first.config.train.steps, first.hydra["runtime"]["cwd"]) == (1, str(Path.cwd()))
    assert again.config.train.steps != 1 and again.base == first.base
    monkeypatch.chdir(tmp_path)
    assert compose(["task=mqar", "model=hawk"]).hydra["runtime"]["cwd"] == str(tmp_path)


def test_a_file_of_ones_own_that_was_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()
    target = "_target_: evalkit.evaluations.extrapolation.measure.Extrapolation"
    words = ["task=mqar", "model=hawk", "eval=mine", f"hydra.searchpath=['file://{tmp_path}']"]
    for sequences in (4, 8):
        (tmp_path / "eval" / "mine.yaml").write_text(f"{target}\nsequences: {sequences}\n")
        assert [compose(words).config.eval.sequences for _ in range(2)] == [sequences] * 2
