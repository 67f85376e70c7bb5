"""What works for a task, and what is behind a figure: a YAML file each, read as layers over the chosen options.

`recipe/<task>.yaml` has settings for `all`, for each preset by its name, and below `models` for each model, there or
within a preset; a later one wins. `experiment/<name>.yaml` has its `options`, its settings and `runs`, and `recipes` in
the same form. `like` takes over what another preset, model or experiment has.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

ALL, MODELS, TASKS, LIKE = "all", "models", "tasks", "like"
SECTIONS = ("task", "model", "train", "eval")
"""Settings that are mappings, wherever they stand."""
GROUPS = ("runs", "controls")
"""Where an experiment has the words of each run."""
Node = Mapping[str, Any]


class Planned(NamedTuple):
    """What the file of an experiment says; `recipes` is None where every model goes by the recipe of its task."""

    name: str
    path: Path
    options: Mapping[str, str]
    settings: Node
    recipes: Node | None


def recipe(task: str, preset: str, model: str | None, own: Path | None) -> list[Node]:
    """The layers of a task's recipe, the strongest last; the user's `own` file is laid over ours. Raises UserError."""
    document = _of_task(task, own)
    if preset == catalogue.TOY and preset not in document:
        others = ", ".join(name for name in catalogue.options("preset", own) if name != preset)
        raise UserError(f"preset={preset} is no size of task={task}; choose one of {others}")
    of_preset = {name: value for name, value in _entry(document, preset).items() if name != MODELS}
    return [document.get(ALL, {}), of_preset, _entry(_models(document, preset), model)]


def models_with(task: str, preset: str, own: Path | None) -> list[str]:
    """The models that have an entry of their own in a task's recipe."""
    return list(_models(_of_task(task, own), preset))


def experiment(name: str, own: Path | None) -> Planned:
    """The experiment of this name, or in this file `*.yaml`; raises UserError for one that is not there or is wrong."""
    path = catalogue.experiment_file(name, own)
    if path is None:
        known = ", ".join(catalogue.options("experiment", own))
        raise UserError(
            f"experiment={name} does not exist; choose one of {known}, or give its file, experiment=PATH.yaml"
        )
    return _experiment(path, own)


def fixed(planned: Planned, preset: str, model: str, own: Path | None) -> Node | None:
    """The settings that an experiment's protocol fixed for a model, None where it fixed nothing; raises UserError."""
    models = _models(planned.recipes or {}, preset)
    if model not in models:
        return None

    def borrowed(name: str, other: str) -> Node:
        node = fixed(_beside(planned.path, name, own), preset, other, own)
        if node is None:
            raise UserError(f"{planned.path}: {LIKE}: {name}/{other} is no recipe at preset={preset}; name another")
        return node

    return _entry(models, model, borrowed)


def of_every_model(planned: Planned, preset: str) -> Node:
    """The settings that an experiment's protocol fixed for every model: those below `all`, then those of a preset."""
    document = planned.recipes or {}
    of_preset = {name: value for name, value in _entry(document, preset).items() if name != MODELS}
    return merged(document.get(ALL, {}), of_preset)


def models_by_preset(planned: Planned, own: Path | None) -> dict[str, list[str]]:
    """The models for which the protocol of an experiment fixed something."""
    models = {preset: sorted(_models(planned.recipes or {}, preset)) for preset in catalogue.options("preset", own)}
    return {preset: names for preset, names in models.items() if names}


def row(group: str, name: str, own: Path | None) -> Node:
    """The row `name` of `<group>.yaml`; raises UserError for one that is not there."""
    for file in catalogue.row_files(group, own):
        rows = read(file)
        if name in rows:
            return rows[name]
    raise UserError(f"{group}={name} does not exist; choose one of {', '.join(catalogue.options(group, own))}")


def read(path: Path) -> dict[str, Any]:
    """The settings of a file; raises UserError for what has none."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    if not isinstance(content, dict):
        raise UserError(f"{path} is a list; write settings, as key: value")
    return {str(name): value for name, value in content.items()}


def merged(under: Node, over: Node) -> dict[str, Any]:
    """`over` laid over `under`, mapping by mapping."""
    both = {
        name: merged(under[name], value)
        for name, value in over.items()
        if isinstance(value, Mapping) and isinstance(under.get(name), Mapping)
    }
    return {**under, **over, **both}


def expanded(templates: Node, grid: Node) -> dict[str, Any]:
    """The runs of a grid: `{name}` in the name of a run and in its words stands for each value of that variable.

    A variable has a list of values, one value, or a mapping by the value of an earlier variable; so may a word be.

    >>> expanded({"{of}_{rate}": ["seed={rate}"]}, {"of": ["mqa", "hawk"], "rate": {"mqa": 1, "hawk": [2, 4]}})
    {'mqa_1': ['seed=1'], 'hawk_2': ['seed=2'], 'hawk_4': ['seed=4']}
    """
    runs: dict[str, Any] = {}
    for template, words in templates.items():
        for point in _points(grid, {}):
            name = _filled(str(template), point)
            left = re.search(r"\{(\w+)\}", name) if grid else None
            if left is not None:
                raise UserError(f"run {template}: {left[1]} is no variable of its grid, which has {', '.join(grid)}")
            filled = list(_words(words, point)) if isinstance(words, list) else words
            if runs.setdefault(name, filled) != filled:
                unnamed = next(variable for variable in grid if f"{{{variable}}}" not in str(template))
                raise UserError(f"two runs of the grid are called {name}; put {{{unnamed}}} into the name {template}")
    return runs


def _experiment(path: Path, own: Path | None, above: tuple[Path, ...] = ()) -> Planned:
    """What a file says; `above` are the files that are `like` it, one of the other."""
    content = dict(read(path))
    _refuse_shapes(content, path)
    _refuse_folder(path.parent.parent, path.parent.name, path.stem)
    if "defaults" in content:
        raise UserError(
            f"{path}: defaults is of Hydra; write options: {{task: …}}, and like: NAME for another experiment"
        )
    grid, recipes, other = content.pop("grid", {}), content.pop("recipes", None), content.pop(LIKE, None)
    options = content.pop("options", {})
    content |= {group: expanded(content[group], grid) for group in GROUPS if isinstance(content.get(group), Mapping)}
    if recipes is not None:
        _held(recipes, path, own)
    if other is not None:
        under = _beside(path, other, own, above)
        options = {**under.options, **options}
        content = merged({name: value for name, value in under.settings.items() if name not in GROUPS}, content)
    return Planned(path.stem, path, options, content, recipes)


def _beside(path: Path, name: str, own: Path | None, above: tuple[Path, ...] = ()) -> Planned:
    """The experiment that the one in `path` names: in the same folder, or wherever it is found by its name."""
    near = path.with_name(f"{name}.yaml")
    found = near if near.is_file() and near != path else catalogue.experiment_file(name, own)
    if found is None:
        return experiment(name, own)  # which says what there is
    if found in (*above, path):
        raise UserError(f"{path}: {LIKE}: {name} leads back to this file; name another experiment")
    return _experiment(found, own, (*above, path))


def _refuse_shapes(content: Node, path: Path) -> None:
    """Raises UserError for a part of an experiment's file that is not what it has to be."""
    kinds = {LIKE: str, **dict.fromkeys(("options", "grid", "recipes", "suite", *SECTIONS), Mapping)}
    for name, value in content.items():
        if name in kinds and not isinstance(value, kinds[name]):
            wanted = "the name of an experiment" if name == LIKE else "settings, such as key: value"
            raise UserError(f"{path}: {name} is {value!r}; write {wanted}, or leave it out")


def _of_task(task: str, own: Path | None) -> Node:
    """The recipe of a task, the user's `own` file laid over ours."""
    _refuse_folder(own, "recipe", task)
    document: Node = {}
    for path in catalogue.recipe_files(task, own):
        document = merged(document, _held(read(path), path, own))
    return document


def _models(document: Node, preset: str) -> Node:
    return merged(document.get(MODELS, {}), _entry(document, preset).get(MODELS, {}))


def _entry(table: Node, name: str | None, borrowed: Any = None, below: tuple[str, ...] = ()) -> Node:
    """An entry of a table, laid over the entry that its `like` names; a name with a slash is of another experiment."""
    entry = dict(table.get(name) or {}) if name is not None else {}
    other = entry.pop(LIKE, None)
    if other is None:
        return entry
    if borrowed is not None and "/" in other:
        return merged(borrowed(*other.split("/", 1)), entry)
    if {name, other} <= catalogue.PRESETS.keys() and other != name and other not in table:
        return entry  # of that size the task has nothing of its own
    if other in (*below, name) or other not in table:
        known = ", ".join(each for each in table if each not in (ALL, MODELS, *below, name))
        raise UserError(f"a recipe of {name} is {LIKE}: {other}; allowed: {known}")
    return merged(_entry(table, other, borrowed, (*below, str(name))), entry)


def _held(document: Node, path: Path, own: Path | None) -> Node:
    """`document`; raises UserError for a key that recipes do not have, and for what is no mapping."""
    presets = catalogue.options("preset", own)
    for name, level in document.items():
        if name not in (ALL, MODELS, TASKS, *presets):
            raise UserError(
                f"{path}: {name} is neither all, models nor a preset ({', '.join(presets)}); write a model's as "
                f"models: {{{name}: …}}, or at one preset as {presets[0]}: {{models: {{{name}: …}}}}"
            )
        models = level if name == MODELS else level.get(MODELS, {}) if isinstance(level, Mapping) else {}
        parts = models.values() if isinstance(models, Mapping) else [models]
        for part in [level, *parts] * (name != TASKS):
            sections = {key: part[key] for key in SECTIONS if key in part} if isinstance(part, Mapping) else {"": part}
            for key, settings in sections.items():
                if not isinstance(settings, Mapping):
                    at = f"{name}: {key}" if key else name
                    raise UserError(
                        f"{path}: {at} has {settings!r} in place of settings; write such as train: {{steps: 1500}}"
                    )
            if not isinstance(part.get(LIKE, ""), str):
                raise UserError(f"{path}: {LIKE}: {part[LIKE]} in {name}; name one other, such as {LIKE}: hawk")
        _refuse_unknown(models, path, own)
    return document


def _refuse_unknown(models: Node, path: Path, own: Path | None) -> None:
    """Raises UserError for a model in the user's own file that is neither a model nor a mixer: nobody would take it."""
    if own is None or not path.is_relative_to(own):
        return
    known = {*catalogue.options("model", own), *catalogue.options("mixer", own)}
    for name in models:
        if name not in known:
            raise UserError(f"{path}: {name} is no model; choose one of {', '.join(sorted(known))}")


def _refuse_folder(own: Path | None, group: str, name: str) -> None:
    """Raises UserError for a folder with one recipe per file, the old form: one file has them all now."""
    files = sorted((own / group / name).rglob("*.yaml")) if own is not None else []
    if files:
        *_, preset, model = ("", *files[0].relative_to(own / group / name).with_suffix("").parts)  # type: ignore[operator]
        within = f"{preset}: {{models: {{{model}: …}}}}" if preset else f"{model}: …"
        below = "recipes: " if group == "experiment" else ""
        raise UserError(f"{files[0]} is not read: move its settings into {group}/{name}.yaml, as {below}{within}")


def _points(grid: Node, point: Node) -> Iterator[Node]:
    """Every combination of the values of the variables that are left in `grid`."""
    if not grid:
        yield point
        return
    (name, values), *rest = grid.items()
    values = _chosen(values, point)
    for value in values if isinstance(values, list) else [values]:
        yield from _points(dict(rest), {**point, name: value})


def _chosen(node: Any, point: Node) -> Any:
    """The value at `point` of a mapping by the values of variables."""
    while isinstance(node, Mapping):
        by_text = {str(value): below for value, below in node.items()}
        here = [str(value) for value in point.values() if str(value) in by_text]
        if not here:
            raise UserError(f"a grid has {', '.join(by_text)}, and none for {dict(point)}; add what is missing")
        node = by_text[here[0]]
    return node


def _words(words: list[Any], point: Node) -> Iterator[Any]:
    for word in words:
        if isinstance(word, Mapping):
            yield from _words(_chosen(word, point), point)
        else:
            yield _filled(word, point) if isinstance(word, str) else word


def _filled(text: str, point: Node) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: str(point.get(name[1], name[0])), text)
