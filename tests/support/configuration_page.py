"""Writes `docs/configuration.md`: every key, as `conf/`, the constructors and their docstrings say it.

A docstring says what its keys mean in a list below a line `Options:`, each as `name (unit): meaning`. From the root:
`python -m tests.support.configuration_page`.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from evalkit.commands import run
from evalkit.configuration import catalogue, recipes
from evalkit.configuration.experiment import SETTINGS, Experiment
from evalkit.configuration.nodes import paths
from evalkit.configuration.schema import annotations, completed, constructor, describe, settings_of
from evalkit.tasks.text import Text

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
PARTS = ("task", "model", "train", "eval", "downstream", "lookup", "wandb")
CHOICES = ("task", "model", "scale", "preset", "eval", "experiment", "log")
ENTRY = re.compile(r"  ([\w.]+)(?: \(([^)]+)\))?: (.*)")
NONE = "—"
STAR = " \\*"
INTRO = """\
# Configuration

Every setting is typed as `key=value`. A choice takes a whole part, such as `task=books`. A dotted key sets one thing of
a part, such as `task.length=1024`. A plain key is of the run, such as `seeds=3`.

```bash
python -m evalkit task=induction_heads model=griffin seeds=3
python -m evalkit task=selective_copying model=hawk preset=cpu train.steps=2000
python -m evalkit task=induction_heads model=mqa 'eval.lengths=[256,1024,4096]'
```

A list or a mapping stands in quotes, for the shell. From Python the same keys go into `settings=`
([`python.md`](python.md)).

`python -m evalkit --cfg job task=… model=…` prints every key of that run, each with the value that counts. A key that
does not exist is refused, with the nearest one that does.

How to read the tables:

- *Default* is the value without a recipe. A star (\\*) marks a key that some recipe in `conf/recipe/` sets: for a task,
  a preset and maybe a model. What you type wins over a recipe.
- `null` means that no value is given; the meaning says what happens then.
- *Unit* says what a number counts. A dash stands for a plain number, a word, or a yes or no.

This page is written from the constructors and their docstrings, and a test holds it to them.
"""
CHOOSING = """\
A choice takes a whole file of `conf/`, or of your own folder (`--config-dir`). `experiment=PATH.yaml` takes any
file, such as those of `studies/`.
"""
WORDS = "These words say what to do; they are no settings. `python -m evalkit run --help` has the flags as well.\n"
ON_CHECKPOINT = """\
With `checkpoint=…` nothing is trained. Then `task=books` and `task=arxiv` keep the settings above; these two have their
own.
"""
DURING = "Beside the evaluation's own `eval.during` ([`text.md`](text.md#while-it-trains)).\n"
MIXING = "A mixer is what a block does between tokens. Its name in the key is the one that `model.pattern` uses.\n"
UNVARIED = """\
Every kept run of `studies/` has one value of these. They are settings because a user has a reason to change them.
"""
REASONS: Mapping[str, str] = {
    "allow_targets": "your own code is in a package that no YAML of `--config-dir` names",
    "checkpoint": "you measure a released model, or a run, without training",
    "compilation_cache": "the user's cache folder is slow, small or shared",
    "distributed": "a run trains on several machines of a cluster",
    "dtype": "a released checkpoint is too large for float32",
    "downstream.during": "you want curves of benchmarks, not their last values alone",
    "eval.before": "the place of a fact matters to your model, as it does to one with sinks or a window",
    "eval.bins": "a curve of the loss needs finer or coarser steps of position",
    "eval.cache_gib": "the memory of your machine holds larger or only smaller caches",
    "eval.devices": "a sequence of an evaluation is too long for one device",
    "eval.documents": "your corpus is larger, and reading all of it takes too long or too little",
    "eval.marks": "your question asks for another accuracy than 95 % or 99 %",
    "eval.own": "the control is to keep more or less of the document than the training length",
    "eval.pairs": "a claim about what a state forgets needs a narrower interval",
    "eval.passage": "your tokens are longer or shorter than bytes",
    "eval.passages": "documents are few, so that each should give more passages",
    "format": "another program reads the result",
    "lookup.during": "you want to see when a model learns to look things up",
    "matmul_precision": "an accelerator is to be faster and less exact",
    "mesh": "a model or a batch is too large for one device",
    "model.mixers.matrix.delta_steps": "a group is harder than one step a token can follow",
    "model.mixers.recurrent.conv_width": "the convolution itself is studied",
    "model.mixers.recurrent.input_scale": "the scale of the input is studied apart from its decay",
    "model.mixers.conv.conv_width": "attention is to see more neighbours before it",
    "model.mixers.s6.expand": "S6 is compared at another size of state",
    "quiet": "a script shows its own progress",
    "scale": "you train a row of the paper's table 2 on an accelerator",
    "sinks": "a sink of your own has settings",
    "task.allow_shared": "a held-out text is meant to be in training, to measure memorisation",
    "task.asked": "single answers at the end are to be asked, as published",
    "task.cache": "several machines share the tokens of one corpus",
    "task.data_tokens": "copying is to be harder, or as in another paper",
    "task.digits": "numbers are to be longer than a small model's default",
    "task.field": "your files keep their text in another column",
    "task.fixed_place": "the weaker test, whose place a model can learn, is to be shown",
    "task.group": "the group decides which state a model needs: parity, a solvable group, or S5",
    "task.held_out": "you name the held-out files one by one",
    "task.hub.config": "a data set of the hub has several configurations",
    "task.hub.documents": "the data set is larger than you can read",
    "task.hub.held_out": "the data set calls its test split otherwise, or has none",
    "task.hub.name": "the text is a data set of the hub",
    "task.hub.revision": "a result is to be repeated on the same revision",
    "task.hub.train": "the data set calls its training split otherwise",
    "task.length_includes_answer": "you compare with MAD, which counts the answers too",
    "task.loss": "training is to score every position, as language modelling does",
    "task.power_a": "the distances between a key and its question follow another law",
    "task.random_non_queries": "you compare with a generator whose fillers are zeros",
    "task.rewrites": "keys are to be written twice, so that the last value counts",
    "task.tokenizer": "the text is to be read as words, or in a released model's tokens",
    "task.train": "you name the training files one by one",
    "task.trigger": "the special token is to stand in the first half, or at one place",
    "task.triggers": "the fact is to be shown more than once",
    "task.validation": "a small corpus needs more, or less, of it for validation",
    "train.b1": "you repeat a recipe that has another momentum",
    "train.b2": "you repeat a recipe that has another second moment",
    "train.clip": "you repeat a recipe without clipping, or your model needs tighter clipping",
    "model.mixers.matrix.states": "states of other sizes are compared, as the suite does by `value_dim`",
    "train.gather": "the parameters of a mesh are too large to be gathered at once",
    "train.label_smoothing": "you repeat a recipe that smooths its targets",
    "train.microbatch": "the activations of a batch are too large",
    "train.optimizer": "your mixer was published with another optimiser",
    "train.parameter_dtype": "an accelerator is faster with bfloat16 matrices",
    "train.skip_nonfinite": "a long run must outlive single bad steps",
    "train.stop_when_solved": "a sweep is to end each training once it is solved",
    "train.stream_facts": "streams of state passing are to hold facts as well",
    "wandb.dir": "W&B's files are to lie on another disk",
    "wandb.entity": "runs belong to a team",
    "wandb.group": "you group runs in another way than by task and model",
    "wandb.job_type": "your dashboard tells runs apart by it",
    "wandb.name": "you name runs yourself",
    "wandb.notes": "a run needs a remark in W&B",
    "wandb.tags": "you find runs by words",
}
"""Why a user changes a setting that no kept run did; a test holds its keys to the kept runs."""


class Option(NamedTuple):
    """What a docstring says of one key; `unit` is empty where there is none."""

    unit: str
    meaning: str

    @property
    def sentence(self) -> str:
        """The meaning with a capital."""
        return self.meaning[:1].upper() + self.meaning[1:]


BAR = r"\|"
"""A bar in the text of a cell; a bare one would begin the next cell."""


class Line(NamedTuple):
    """One row of a table; `default` is as YAML writes it."""

    key: str
    type: str
    default: str
    option: Option

    def __str__(self) -> str:
        cells = f"`{self.key}`", self.type, self.default, self.option.unit or NONE, self.option.sentence
        return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def written() -> str:
    """The whole page."""
    return "\n".join(
        [
            INTRO,
            *_section("Choices", [CHOOSING, *map(_choices, CHOICES)]),
            *_section("The run", [_table(_of_the_run()), WORDS, _words()]),
            *_section("Tasks", _parts("task")),
            *_section("Tasks of a checkpoint", [ON_CHECKPOINT, *_parts("on_checkpoint")]),
            *_section("Models", _parts("model")),
            *_section("Mixers", [MIXING, *_mixers()]),
            *_section("Training", _of_every_run("train")),
            *_section("Evaluations", _parts("eval")),
            *_section("While a model trains on text", [DURING, *_of_every_run("downstream"), *_of_every_run("lookup")]),
            *_section("Weights & Biases", _of_every_run("wandb")),
            *_section("Settings that no kept run changed", [UNVARIED, _reasons()]),
        ]
    )


def options_of(built: Callable[..., Any]) -> dict[str, Option]:
    """What the docstrings of a function, or of a class and those that it derives from, say of each key.

    >>> from evalkit.tasks.phonebook_tokens import PhonebookTokens
    >>> options_of(PhonebookTokens)["digits"]
    Option(unit='tokens', meaning='the length of a number; ten in the text.')
    """
    owners = reversed(inspect.getmro(built)) if inspect.isclass(built) else [built]
    return {name: option for owner in owners for name, option in listed(owner).items()}


def listed(owner: Any) -> dict[str, Option]:
    """What the docstring of `owner` alone says of each key, below its line `Options:`."""
    lines = inspect.cleandoc(owner.__doc__ or "").splitlines()
    starts = [number for number, line in enumerate(lines) if re.fullmatch(r"Options\b.*:", line)]
    found: dict[str, Option] = {}
    for line in lines[starts[0] + 1 :] if starts else []:
        entry = ENTRY.fullmatch(line)
        if entry:
            name, found[entry[1]] = entry[1], Option(entry[2] or "", entry[3])
        elif line.startswith("    "):
            found[name] = found[name]._replace(meaning=f"{found[name].meaning} {line.strip()}")
        else:
            break
    return found


def lines_of(nodes: Mapping[str, Any], path: str) -> Iterator[Line]:
    """The rows of one constructor, with its `nodes` by option; a nested constructor's rows follow in their place."""
    starred = set() if _never_trained(path, nodes) else _in_recipes(nodes if path.startswith("task") else ["*"])
    first = next(iter(nodes.values()))
    whole = {name: completed(node) for name, node in nodes.items()}
    options = options_of(constructor(first, path))
    for name, annotation in settings_of(first, path).items():
        key, values = f"{path}.{name}", {option: node[name] for option, node in whole.items() if name in node}
        if any(isinstance(value, Mapping) and "_target_" in value for value in values.values()):
            yield from lines_of(values, key)
            continue
        default = (_default(values) if name != "mixers" else "see [Mixers](#mixers)") + STAR * (key in starred)
        yield Line(key, _type(annotation), default, options.get(name, Option("", "")))


def _section(title: str, tables: Iterable[str]) -> list[str]:
    return [f"## {title}\n", *tables]


def _table(lines: Iterable[Line]) -> str:
    rows = "\n".join(map(str, lines))
    return f"| key | type | default | unit | meaning |\n|---|---|---|---|---|\n{rows}\n"


def _summary(node: Mapping[str, Any]) -> str:
    """The first line of the docstring of what `node` builds."""
    return inspect.cleandoc(constructor(node, "").__doc__ or "").splitlines()[0] + "\n"


def _type(annotation: Any) -> str:
    """A type without articles; `_target_` in backticks, which Markdown would take for emphasis."""
    return re.sub(r"\ba | of (Any|object)", "", describe(annotation)).replace("_target_", "`_target_`")


def _choices(group: str) -> str:
    shown = [(option, catalogue.headline(group, option)) for option in catalogue.options(group)]
    typed = "{}=[{}]" if group == "log" else "{}={}"  # a list: several may be chosen
    rows = "\n".join(f"| `{typed.format(group, option)}` | {headline} |" for option, headline in shown)
    return f"| {group} | what it is |\n|---|---|\n{rows}\n"


def _of_the_run() -> Iterator[Line]:
    root, options = _root(), options_of(Experiment)
    names = [name for name in SETTINGS if name not in PARTS]
    within = {"data": [f"data.{part}" for part in root["data"]]}
    for key in [key for name in names for key in within.get(name, [name])]:
        name, _, part = key.partition(".")
        annotation = annotations(Text)[part] if part else SETTINGS[name]  # which `data` is handed on to
        value = root[name][part] if part else root.get(name, "paper")
        default = "follows" if key.endswith("_name") else _shown(value) + STAR * (key in _in_recipes(["*"]))
        yield Line(key, _type(annotation), default, options.get(key, Option("", "")))


def _reasons() -> str:
    rows = "\n".join(f"| `{key}` | {reason} |" for key, reason in REASONS.items())
    return f"| key | change it when |\n|---|---|\n{rows}\n"


def _words() -> str:
    rows = "\n".join(f"| `{name}=…` | {option.sentence} |" for name, option in options_of(run.main).items())
    return f"| word | meaning |\n|---|---|\n{rows}\n"


def _of_every_run(part: str) -> list[str]:
    node = _root()[part]
    return [_summary(node), _table(lines_of({part: node}, part))]


def _parts(group: str) -> Iterator[str]:
    """A table for each constructor that options of this group name, under those options."""
    by_target: dict[str, dict[str, Any]] = {}
    for option in catalogue.options(group):
        node = _node(group, option)
        if "_target_" in node:
            by_target.setdefault(node["_target_"], {})[option] = node
    part = "task" if group == "on_checkpoint" else group
    for nodes in by_target.values():
        title = "Every model" if len(nodes) == len(catalogue.options(group)) > 1 else _title(part, nodes)
        yield f"### {title}\n\n{_summary(next(iter(nodes.values())))}\n{_table(lines_of(nodes, part))}"


def _mixers() -> Iterator[str]:
    """A table for each mixer and the name that models give it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for option in catalogue.options("model"):
        for name, node in _node("model", option)["mixers"].items():
            found.setdefault((name, node["_target_"]), {})[option] = node
    for (name, target), nodes in found.items():
        title = f"{target.rpartition('.')[2]} in {', '.join(nodes)}"
        summary = _summary(next(iter(nodes.values())))
        yield f"### {title}\n\n{summary}\n{_table(lines_of(nodes, f'model.mixers.{name}'))}"


def _title(group: str, nodes: Mapping[str, Any]) -> str:
    return ", ".join(f"`{group}={option}`" for option in nodes)


def _node(group: str, option: str) -> Any:
    """What the YAML of an option describes."""
    if group == "on_checkpoint":
        return recipes.row(group, option, None).get("task", {})  # books and arxiv are those that are trained on
    loaded = _loaded(catalogue.directory() / group / f"{option}.yaml")
    return {name: value for name, value in loaded.items() if name != "defaults"}


def _root() -> dict[str, Any]:
    root = _loaded(catalogue.directory() / "config.yaml")
    return {**root, "wandb": _loaded(catalogue.directory() / "log" / "wandb.yaml")}


def _loaded(path: Path) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(OmegaConf.load(path))
    return found


def _never_trained(path: str, options: Iterable[str]) -> bool:
    """Whether `path` is an evaluation of checkpoints alone, for which there is no recipe."""
    rows = [recipes.row("on_checkpoint", option, None) for option in catalogue.options("on_checkpoint")]
    taken = [row["options"].get("eval") for row in rows]
    return path == "eval" and set(options) <= set(taken)


def _in_recipes(tasks: Iterable[str]) -> set[str]:
    """The keys that some recipe of these tasks sets; `*` is every task."""
    names = catalogue.options("recipe") if "*" in tasks else tasks
    return {key for name in names for path in catalogue.recipe_files(name) for key in _keys(path)}


@cache
def _keys(path: Path) -> list[str]:
    levels = [level for name, level in recipes.read(path).items() if name not in (recipes.TASKS, recipes.MODELS)]
    models = [of for level in [recipes.read(path), *levels] for of in level.get(recipes.MODELS, {}).values()]
    return [key for level in [*levels, *models] for key in paths(level) if not key.startswith(recipes.MODELS)]


def _default(values: Mapping[str, Any]) -> str:
    """One value, or the most frequent and the options with the others; by option where there are many."""
    if not values:
        return "required"
    by_shown: dict[str, list[str]] = {}
    for option, value in values.items():
        by_shown.setdefault(_shown(value), []).append(option)
    most, *others = sorted(by_shown, key=lambda shown: -len(by_shown[shown]))
    if len(others) > 2:
        return "by model"
    return "; ".join([most, *(f"{shown} in {', '.join(by_shown[shown])}" for shown in others)])


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        text = f"[{', '.join(_shown(item).strip('`') for item in value)}]"
    else:
        text = str(value or repr(value))
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
