"""Hydra: what is private in it is where this version has it, and words that stand for something are as it has them."""

import inspect
import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig

import evalkit
from evalkit.configuration import hydra_private, saved
from evalkit.configuration.composition import compose, whole
from evalkit.configuration.grammar import combinations, parse
from evalkit.configuration.nodes import plain
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.session import experiments
from support import tiny


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


FEW = settings(max_examples=6, deadline=None)
RUN = ["task=mqar", "model=hawk"]
OUTPUT = "${hydra:runtime.output_dir}/tokens"
VALUES = st.fixed_dictionaries(
    {"seed": st.integers(0, 3)}, optional={"wandb.name": st.sampled_from("ab"), "seeds": st.integers(1, 2)}
)


def note_of(words: list[str]) -> Any:
    return compose([*RUN, *words]).config.wandb.notes


@pytest.mark.slow
@FEW
@given(first=VALUES, second=VALUES)
@example({"seed": 0}, {"seed": 1})
def test_folders_that_are_named_by_what_was_typed_are_the_same_exactly_if_that_is(first: Any, second: Any) -> None:
    named = "hydra.run.dir='o/${hydra.job.override_dirname}'"
    folders = [compose([*RUN, *overrides_of(values), named]).folder for values in (first, second)]
    assert (folders[0] == folders[1]) == (first == second)
    assert str(folders[0]).count(",") == len(first) + 1


@FEW
@given(folder=st.text("ab 'é=,", min_size=1, max_size=8).filter(lambda text: text.strip() == text))
def test_a_runs_values_know_the_folder_that_it_writes_into(folder: str) -> None:
    composed = compose([*RUN, *overrides_of({"hydra.run.dir": f"o/{folder}", "wandb.notes": OUTPUT})])
    assert composed.config.wandb.notes == f"{Path('o', folder).absolute()}/tokens"
    assert composed.folder == Path("o", folder)


def test_a_clock_in_the_folder_and_in_a_value_is_read_once() -> None:
    composed = compose([*RUN, "hydra.run.dir='o/${now:%S-%f}'", f"wandb.notes='{OUTPUT}'", "wandb.name='${now:%S-%f}'"])
    assert composed.config.wandb.notes == f"{composed.folder.absolute()}/tokens"
    assert composed.folder == Path("o", composed.config.wandb.name)


NAMES = ("job.name", "job.num", "job.id", "mode", "runtime.output_dir", "runtime.cwd", "runtime.choices.model")


@pytest.mark.slow
@pytest.mark.parametrize("subdir", ["${hydra.job.num}", "${hydra:job.override_dirname}", "${seed}-${hydra.job.id}"])
def test_each_job_of_a_sweep_has_what_hydra_gives_it_and_what_is_checked_before(subdir: str, tmp_path: Path) -> None:
    """Hydra starts the jobs; what they are was composed, and held to the constructors, before."""
    notes = "|".join(f"${{hydra:{name}}}" for name in NAMES)
    given_ = {"hydra.sweep.dir": tmp_path, "hydra.sweep.subdir": subdir, "wandb.notes": notes}
    excluded = "hydra.job.config.override_dirname.exclude_keys=[wandb.notes]"
    words = [*RUN, "seed=3,1", excluded, *overrides_of(given_)]
    before = [compose(one, job=number).config.wandb.notes for number, one in enumerate(combinations(words))]

    def work(config: DictConfig) -> tuple[str, str]:
        return plain(config)["wandb"]["notes"], str(HydraConfig.get().runtime.output_dir)

    of_runs = [word.input_line or "" for word in parse(words) if not word.is_hydra_override()]
    done = hydra_private.multirun(of_runs, combinations(words)[0], whole, work)
    assert [note for note, _ in done] == before
    assert [note.split("|")[4] for note, _ in done] == [folder for _, folder in done]
    assert [note.split("|")[1] for note, _ in done] == ["0", "1"]
    assert len({folder for _, folder in done}) == 2


def test_the_runs_of_an_experiment_know_their_own_folders(tmp_path: Path) -> None:
    own = [f"wandb.notes={OUTPUT}"]
    chosen = DictConfig({"runs": {name: [*tiny.OVERRIDES, *own] for name in "ab"}, "controls": {}})
    jobs = experiments._jobs(chosen, [], tmp_path)
    assert [job.spec.plain["wandb"]["notes"] for job in jobs] == [f"{tmp_path / name}/tokens" for name in "ab"]
    assert [job.folder for job in jobs] == [tmp_path / "a", tmp_path / "b"]


def test_an_experiments_folder_may_be_named_by_what_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    words = parse(["experiment=fig1a", "preset=cpu", "seed=4", "hydra.run.dir='o/${hydra.job.override_dirname}'"])
    folders: list[Path] = []

    def stop(config: DictConfig, typed: object, folder: Path) -> None:
        folders.append(folder)
        raise UserError("seen")

    monkeypatch.setattr(experiments, "_jobs", stop)
    with pytest.raises(UserError, match="seen"):
        experiments.main(words)
    assert folders == [Path("o/experiment=fig1a,preset=cpu,seed=4")]


PLACES = {"a value": "wandb.notes='{}'", "a list": "wandb.tags=[a,'{}']", "a folder": "hydra.run.dir='o/{}'"}
NOWHERE = ["${hydra:job.num}", "${hydra:job.nothing}", "${oc.env:EVALKIT_NOTHING}", "${nothing}", "${nothing:1}"]


@pytest.mark.parametrize(("place", "text"), list(itertools.product(PLACES, NOWHERE)))
def test_what_stands_for_nothing_is_one_line_that_names_the_setting(place: str, text: str) -> None:
    assert "EVALKIT_NOTHING" not in os.environ
    word = PLACES[place].format(text)
    with pytest.raises(UserError) as refusal:
        plain(compose([*RUN, word]).config)
    assert word.partition("=")[0] in str(refusal.value) and "write a value" in str(refusal.value)


@FEW
@given(body=st.sampled_from(["", "a", "now:", "hydra:", "oc.env:A,", "a b}"]), place=st.sampled_from(sorted(PLACES)))
def test_half_an_interpolation_names_the_setting(body: str, place: str) -> None:
    word = PLACES[place].format("${" + body)
    with pytest.raises(UserError, match=r"no \$\{key\}; write a value") as refusal:
        note_of([word])
    assert str(refusal.value).startswith(word)


@pytest.mark.parametrize("text", ["${hydra:job.name}", "${hydra.job.name}", "${nothing}", "a ${ b"])
def test_a_dollar_after_a_backslash_is_refused_before_a_run_that_could_not_be_read_again(text: str) -> None:
    words = [*RUN, f"wandb.notes='{text.replace('${', chr(92) + '${')}'"]
    with pytest.raises(UserError, match=r"wandb\.notes=.*: a run cannot say \$\{ as text"):
        Spec.of(words)


def test_a_dot_in_place_of_the_colon_is_said() -> None:
    with pytest.raises(UserError, match=r"wandb\.notes=.*write it with a colon"):
        note_of(["wandb.notes='${hydra.job.name}'"])


def test_a_run_that_is_there_has_nothing_of_hydras() -> None:
    before = tiny.experiment().config
    with pytest.raises(UserError, match="give the value itself"):
        saved.changed(before, parse([f"wandb.notes='{OUTPUT}'"]), saved.EVALUABLE)
