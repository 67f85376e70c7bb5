"""Configuration: everything in `conf/` composes and builds, and everything wrong is one clear line."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from evalkit.configuration import catalogue, composition
from evalkit.configuration import experiment as config
from evalkit.configuration.grammar import combinations
from evalkit.configuration.schema import annotations
from evalkit.configuration.spec import Spec
from evalkit.core.errors import UserError
from evalkit.record.wandb import Wandb
from evalkit.session.gates import refuse_run_in
from evalkit.training.settings import Training
from support.shrunk import DRAWN, sampled

GRIFFIN = ("task=induction_heads", "model=griffin")
TASKS, MODELS = (catalogue.options(group) for group in ("task", "model"))
PRESETS = [preset for preset in catalogue.options("preset") if preset != catalogue.TOY]


def combined() -> list[Any]:
    """Every task, model and preset; the default suite has each task once, models and presets in turn."""
    pairs = [(task, preset) for task in TASKS for preset in PRESETS] + [("selective_copying", catalogue.TOY)]
    chosen = {(task, MODELS[turn], PRESETS[turn % len(PRESETS)]) for turn, task in enumerate(TASKS)}
    whole = ((task, model, preset) for task, preset in pairs for model in MODELS)
    return [pytest.param(*one, marks=() if one in chosen else pytest.mark.exhaustive) for one in whole]


def built(*overrides: str) -> config.Experiment:
    return Spec.of(overrides).experiment


def check(overrides: Sequence[str], *, sweep: bool = False) -> None:
    """What a command does before its first run."""
    for combination in combinations(overrides) if sweep else [overrides]:
        composed = Spec.of(combination)
        if not sweep:
            refuse_run_in(composed.folder)
        composed.experiment.feed.prepare()


def refusal(*overrides: str, sweep: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        check(overrides, sweep=sweep)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


@pytest.mark.parametrize(("task", "model", "preset"), combined())
def test_every_task_model_and_preset_builds(task: str, model: str, preset: str) -> None:
    experiment = built(f"task={task}", f"model={model}", f"preset={preset}")
    assert (experiment.task_name, experiment.model_name, experiment.preset) == (task, model, preset)
    lengths = [stage.length for stage in experiment.train.stages(experiment.task.length)]
    assert lengths and lengths[-1] == experiment.task.length


@pytest.mark.parametrize(
    ("task", "preset", "length", "window"),
    [
        ("induction_heads", "paper", 256, 128),
        ("induction_heads", "cpu", 256, 128),
        ("selective_copying", "paper", 1024, 512),
        ("selective_copying", "cpu", 128, 64),
        ("selective_copying", "tiny", 16, 8),
    ],
)
def test_griffin_looks_back_half_the_training_length(task: str, preset: str, length: int, window: int) -> None:
    plain = Spec.of((f"task={task}", "model=griffin", f"preset={preset}")).plain
    assert (plain["task"]["length"], plain["model"]["mixers"]["attention"]["window"]) == (length, window)


@pytest.mark.slow
@pytest.mark.parametrize("task", sampled([name for name in DRAWN if name != "needle_tokens"], 4))  # which no paper has
def test_a_shrunk_setting_says_the_papers(task: str) -> None:
    paper, small = (Spec.of((f"task={task}", "model=mqa", *preset)).plain for preset in ((), ("preset=cpu",)))
    assert small["paper"].get("length", small["task"]["length"]) == paper["task"]["length"]


@pytest.mark.parametrize("name", sampled(catalogue.options("task"), 3))
def test_a_composed_task_has_every_setting_of_its_constructor(name: str) -> None:
    task = config.build_task(name)
    assert task == type(task)()
    assert set(composition.compose([f"task={name}"]).config.task) == {"_target_", *annotations(type(task))}


@pytest.mark.slow
def test_what_a_recipe_sets_gives_way_to_a_shorter_training() -> None:
    assert Spec.of((*GRIFFIN, "train.steps=50", "train.curriculum=[]")).plain["train"]["warmup_steps"] == 100
    assert len(built(*GRIFFIN, "task.length=32").train.stages(32)) == 1


@pytest.mark.slow
def test_the_longest_evaluations_that_run_are_not_refused() -> None:
    for model in ("griffin", "mqa"):  # whose caches are bounded, and grow
        longest = built("task=induction_heads", f"model={model}", "eval.lengths=[1048576]", "eval.max_length=null")
        assert longest.config["eval"]["lengths"] == [1048576]


def test_an_evaluation_of_another_kind_leaves_out_what_a_recipe_says_of_the_first() -> None:
    assert "max_length" in Spec.of(("task=induction_heads", "model=mqa")).plain["eval"]
    assert built("task=induction_heads", "model=mqa", "eval=recall").eval.kind == "evalkit.evaluations.recall.report"


@pytest.mark.parametrize(("node", "constructor"), [("train", Training), ("wandb", Wandb)])
def test_a_configuration_has_every_setting_of_training_and_of_wandb(node: str, constructor: type) -> None:
    stated = set(Spec.of(GRIFFIN).plain[node]) - {"_target_"}
    assert stated == {field.name for field in fields(constructor)}


@pytest.mark.parametrize("group", ["task", "model", "preset", "eval"])
def test_every_option_has_a_headline(group: str) -> None:
    assert all(catalogue.headline(group, option) for option in catalogue.options(group))


def test_the_command_line_wins_over_recipe_and_preset() -> None:
    given = ("task.length=64", "model.mixers.attention.window=16", "train.learning_rate=0.5", "eval.lengths=[64]")
    experiment = built("task=selective_copying", "model=griffin", "preset=cpu", *given)
    assert (experiment.task.length, experiment.model.window, experiment.train.learning_rate) == (64, 16, 0.5)
    assert experiment.config["eval"]["lengths"] == [64]


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_setting_that_yaml_leaves_out_may_be_given(plus: str) -> None:
    plain = Spec.of(("task=induction_heads", "model=hawk", f"{plus}model.mixers.recurrent.decay_range=[0.5,0.6]")).plain
    assert plain["model"]["mixers"]["recurrent"]["decay_range"] == [0.5, 0.6]


def test_what_is_built_holds_plain_data() -> None:
    experiment = built(*GRIFFIN, "train.curriculum=[{length: 64, steps: 5, batch_size: 2}]")
    assert type(experiment.config) is dict and type(experiment.config["eval"]["lengths"]) is list
    assert type(experiment.train.curriculum) is list and type(experiment.train.curriculum[0]) is dict


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.stepz=1", ["'train.stepz'", "'train.steps'"]),
        ("+train.stepz=1", ["'train.stepz'", "'train.steps'"]),
        ("++train.stepz=1", ["'train.stepz'", "'train.steps'"]),
        ("steps=1", ["'steps'", "'train.steps'"]),
        ("+wandbb=1", ["'wandbb'", "'wandb'"]),
        ("model.widht=1", ["'model.widht'", "'model.width'"]),
        ("model.mixers.attention.windw=1", ["'model.mixers.attention.window'"]),
        ("+model.mixers.attenton.window=1", ["'model.mixers.attenton'", "'model.mixers.attention'"]),
        ("model.mixers.attention.width=32", ["'model.mixers.attention.width'"]),
        ("model.vocab_size=32", ["'task.vocab_size'"]),
        ("eval.length=[64]", ["'eval.lengths'"]),
        ("hydra.rundir=x", ["'hydra.rundir'", "'hydra.run.dir'"]),
        ("paper.length=3", ["'paper.length'"]),
        ("config.x=1", ["unknown key 'config'"]),
        ("task_name=x", ["task=…"]),
        ("train.steps=abc", ["train.steps='abc'", "int"]),
        ("train.steps=1.5", ["train.steps=1.5", "int"]),
        ("train.steps=true", ["train.steps=True", "int"]),
        ("train.learning_rate=fast", ["train.learning_rate='fast'", "float"]),
        ("model.mixers.attention.window=wide", ["model.mixers.attention.window='wide'", "int or null"]),
        ("eval.lengths=64", ["eval.lengths=64", "list of int"]),
        ("eval.lengths=[64,x]", ["eval.lengths=", "list of int"]),
        ("eval.lengths=[64,2]", ["length=2 is too short"]),
        ("train.curriculum=[{length: 2, steps: 5, batch_size: 2}]", ["length=2 is too short"]),
        ("train=5", ["train=5", "train.steps="]),
        ("seeds=many", ["seeds='many'", "int"]),
        ("seeds=0", ["seeds=0"]),
        ("format=xml", ["format='xml'", "text, json"]),
        ("matmul_precision=low", ["highest"]),
        ("wandb.mode=maybe", ["wandb.mode='maybe'", "offline"]),
        ("model.mixers.attention.window=0", ["model.mixers.attention.window=0", "1 or more"]),
        ("model.mixers.attention.head_dim=5", ["model.mixers.attention.head_dim=5", "even number"]),
        ("model.mixers.recurrent.gate_blocks=7", ["model.mixers.recurrent.gate_blocks", "divisor of 64"]),
        ("model.pattern=[attention,conv]", ["model.pattern", "'conv'"]),
        ("task.trigger=late", ["task.trigger='late'", "prefix"]),
        ("train.steps=0", ["train.steps=0", "1 or more"]),
        ("train.steps=600", ["train.steps=600", "at length 128 of 256", "train.curriculum=[]"]),
        ("eval.chunk=0", ["eval.chunk=0"]),
        ("~model.mixers.recurrent.width_rnn", ["model", "width_rnn"]),
        ("~train", ["train is missing"]),
        ("task._target_=nowhere.Task", ["task._target_=nowhere.Task", "nowhere"]),
        ("preset=tpu", ["preset=tpu", "cpu, paper"]),
        ("eval=none", ["eval=none", "extrapolation"]),
        ("train.steps=${nothing}", ["nothing"]),
        ("train.steps=1,2", ["-m"]),
        ("train", ["'train'", "key=value"]),
        ("~train.steps", ["train.steps is missing and has no default; give train.steps=…"]),
        ("lr=1", ["'lr'", "'train.learning_rate'"]),
        ("train.lr=1", ["'train.lr'", "'train.learning_rate'"]),
        ("batch_size=4", ["'train.batch_size'"]),
        ("epochs=4", ["'train.steps'"]),
        ("n_layers=4", ["unknown key 'n_layers'; give model.depth=6"]),
        ("optimizer=sgd", ["'train.optimizer'"]),
        ("train.final_fraction=0.5", ["train.final_fraction is where a cosine ends, but train.schedule=constant"]),
        ("output_dir=x", ["'hydra.run.dir'"]),
        ("device=cuda", ["JAX_PLATFORMS=cpu, cuda or tpu"]),
        ("model.dropout=0.1", ["no dropout"]),
        ("by=validation.loss", ["evalkit search", "hydra/sweeper=optuna"]),
        ("eval.during={every: 100}", ["eval.during is a list, not a mapping", "eval.during=[a]"]),
        ("modle=griffin", ["'modle'", "'model'"]),
        ("model=scaled/hawk", ["'scaled/hawk' has a slash; name a file that lies right in the folder model"]),
        ("task.length=100000000", ["task.length=100000000 takes at least", "iB", "this machine has"]),
        ("eval.lengths=[99999999999]", ["99,999,999,999 tokens takes at least 838 GiB"]),
        ("eval.lengths=[2000000000]", ["8 sequences of 2,000,000,000 tokens (eval.lengths) takes at least 134 GiB"]),
        ("train.batch_size=1000000000", ["train.batch_size=1000000000 takes at least"]),
        ("seeds=4000000000", ["seeds=4000000000 takes at least"]),
        ("eval.lengths=[]", ["eval.lengths=[] measures nothing"]),
        ("train.warmup_steps=3001", ["train.warmup_steps=3001, but training ends at train.steps=3000"]),
        ("train.curriculum=[{length: 256, steps: 5, batch_size: 2}]", ["a stage of length=256, but task.length=256"]),
        ("train.lengths=[1,40]", ["train.lengths=[1, 40], but the longest is task.length=256", "[SHORTEST,256]"]),
        ("train.lengths=[2,256]", ["length=2 is too short"]),
        ("train.lengths=[9]", ["train.lengths=[9]; allowed: [shortest, longest] from 1", "or null"]),
        ("train.lengths=[9,4]", ["train.lengths=[9, 4], but the longest is task.length=256"]),
        ("train.lengths=[0,256]", ["train.lengths=[0, 256]; allowed"]),
        ("train.lengths=40", ["train.lengths=40", "list of int or null"]),
        ("train.eval_every=3", ["train.eval_every=3 is no multiple of train.log_every=25"]),
        ("eval.during_every=250", ["eval.during_every=250, but models are validated every train.eval_every=100 steps"]),
        ("train.steps=[1,2", ["cannot read", "'train.steps=[a,b]'"]),
        ("data.path=/a/b[1].txt", ["type 'data.path=\"/a/b[1].txt\"', quotes within quotes"]),
        ("data.path='a", ["every quote needs its other half"]),
        ("quiet=1", ["quiet=1; allowed: bool"]),
        ("train.b2=1.1", ["train.b2=1.1; allowed: from 0, below 1"]),
    ],
)
def test_wrong_input_is_one_line(override: str, said: Sequence[str]) -> None:
    message = refusal(*GRIFFIN, override)
    assert all(part in message for part in said), message


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((), ["task is missing", "induction_heads", "selective_copying"]),
        (("model=mqa",), ["task is missing"]),
        (("task=induction_heads",), ["model is missing", "model=hawk"]),
        (("task=inductionheads", "model=mqa"), ["task=inductionheads", "induction_heads"]),
        (
            ("task=induction_heads", "model=retnet"),
            ["model=retnet", "griffin_released, gru, hawk, hawk_complex", "mamba3, mingru, mlstm, mqa"],
        ),
        (("task=induction_heads", "model=mqa,hawk"), ["-m"]),
        (("task=selective_copying", "model=mqa", "task.data_tokens=2000"), ["task.data_tokens=2000", "1024"]),
        (  # held-out sequences have all pairs, whatever training has
            ("task=mqar", "model=hawk", "task.length=64", "task.fewest_pairs=2", "eval.lengths=[16,64]"),
            ["length=16 is too short for pairs=8; use a length of at least 32"],
        ),
        (  # of the recipe, which the user did not type
            ("task=needle", "model=hawk", "task.keys=2", "task.length=2048"),
            ["train.curriculum has a stage that the task cannot have: length=128", "or give 'train.curriculum=[]'"],
        ),
        (("task=books", "model=mqa", "data.path=/nope"), ["data.path=/nope is no folder", "heldout-*.txt"]),
        (("task=books", "model=mqa", "task.tokenizer=gpt2"), ["task.tokenizer=gpt2; allowed: the path of"]),
        (("task=books", "checkpoint=x", "mesh={data: 2, model: 1}"), ["divides training", "leave it out"]),
        (
            ("task=books", "checkpoint=x", "eval.during=[2048]"),
            ["eval.during=[2048], but checkpoint=x is trained already; leave one of the two out"],
        ),
        (("task=books", "checkpoint=x", "preset=cpu"), ["preset=cpu, but checkpoint=x is trained already"]),
    ],
)
def test_wrong_choices_are_one_line(overrides: Sequence[str], said: Sequence[str]) -> None:
    message = refusal(*overrides)
    assert all(part in message for part in said), message


@pytest.mark.exhaustive  # by the command, in tests/commands/test_cli.py and test_wrong_lines.py
def test_a_sweep_is_checked_run_by_run() -> None:
    swept = ("task=induction_heads", "model=griffin,hawk", "seed=range(0,2)")
    check(swept, sweep=True)
    assert "'train.stepz'" in refusal(*swept, "train.stepz=1", sweep=True)
    assert "attention" in refusal(*swept, "model.mixers.attention.window=64", sweep=True)  # Hawk has none
    assert "window=0" in refusal(*GRIFFIN, "model.mixers.attention.window=64,0", sweep=True)
    assert "model=retnet" in refusal("task=induction_heads", "model=hawk,retnet", sweep=True)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder of configurations, with the task and the model `mine`."""
    for group, option in (("task", "selective_copying"), ("model", "griffin")):
        (tmp_path / group).mkdir()
        text = (catalogue.directory() / group / f"{option}.yaml").read_text(encoding="utf-8")
        (tmp_path / group / "mine.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_task_and_a_model_of_ones_own_need_no_recipe(own: Path) -> None:
    search = f"hydra.searchpath=['file://{own}']"
    experiment = built("task=mine", "model=mine", "preset=cpu", search)
    assert (experiment.task_name, experiment.task.length, experiment.model.window) == ("mine", 1024, 128)
    assert "model=yours" in refusal("task=mine", "model=yours", search)


def test_a_model_of_ones_own_takes_what_a_preset_sets_for_every_model(own: Path) -> None:
    search = f"hydra.searchpath=['file://{own}']"
    ours = Spec.of(("task=selective_copying", "model=hawk", "preset=cpu")).plain
    mine = Spec.of(("task=selective_copying", "model=mine", "preset=cpu", search)).plain
    assert (mine["task"]["length"], mine["eval"], mine["paper"]) == (128, ours["eval"], {"length": 1024})


@pytest.mark.parametrize("group", ["task", "model"])
def test_a_file_that_names_nothing_to_build_is_refused(group: str, own: Path) -> None:
    (own / group).mkdir(exist_ok=True)
    (own / group / "unnamed.yaml").write_text("length: 5\n")
    chosen = {"task": "induction_heads", "model": "hawk"} | {group: "unnamed"}
    message = refusal(*(f"{name}={value}" for name, value in chosen.items()), f"hydra.searchpath=['file://{own}']")
    assert message.startswith(f"{group} has no _target_; name what it builds")


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    check([*GRIFFIN, f"hydra.run.dir={tmp_path}"])
    (tmp_path / "metrics.jsonl").touch()
    assert f"python -m evalkit resume {tmp_path}, or" in refusal(*GRIFFIN, f"hydra.run.dir={tmp_path}")


LATIN, UTF16 = "# caf\xe9\n".encode("latin-1"), "length: 8\n".encode("utf-16")


@pytest.mark.parametrize(
    ("name", "content"),
    [("task/mine.yaml", LATIN), ("recipe/mine.yaml", UTF16), ("experiment/mine.yaml", LATIN), ("scale.yaml", UTF16)],
)
def test_a_yaml_of_ones_own_that_is_not_utf8_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    assert f"{tmp_path / name}, line 1, is " in refusal(*GRIFFIN, f"hydra.searchpath=['file://{tmp_path}']")
    (tmp_path / name).rename((tmp_path / name).with_name("._mine.yaml"))
    Spec.of([*GRIFFIN, f"hydra.searchpath=['file://{tmp_path}']"])
