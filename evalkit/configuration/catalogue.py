"""What can be chosen: the options in `conf/`, found without importing JAX or Hydra."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from evalkit.core.errors import UserError, typed_path
from evalkit.core.moved import MOVED
from evalkit.core.trust import package_of
from evalkit.disk.files import text_of

TARGET = re.compile(r"_target_['\"]?\s*:\s*['\"]?([A-Za-z_][\w.]*)")
OF_GROUPS = ("*/*.yaml", "*/*/*.yaml")
LIKE, TASKS = re.compile(r"^like: *['\"]?([\w./-]+)", re.MULTILINE), re.compile(r"^tasks:", re.MULTILINE)
ROW = re.compile(r"^([\w.]+):(?:.*?# (.+))?", re.MULTILINE)

Stamp = tuple[str, int, int]
"""A file by its path, its time in nanoseconds and its size."""
PRESETS: Mapping[str, str] = {
    "cpu": "Sizes that two CPU cores train in minutes; a task that needs none of it keeps the paper's.",
    "paper": "The paper's own sizes.",
    "text": (
        "A model on text that two CPU cores train in about a quarter of an hour; "
        "the default of task=books and task=arxiv."
    ),
    "tiny": "A toy that one CPU core learns in minutes, to try a command; of task=selective_copying alone.",
}
"""What `preset=` takes, a plain name, with what it means; `conf/recipe/<task>.yaml` has what it sets."""
TOY = "tiny"
"""Only a recipe with an entry for this preset offers it; without an entry, any other preset has the paper's sizes."""


def directory() -> Path:
    """The configuration: inside the package where it was installed, beside it in a checkout. Raises UserError."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise UserError(
        f"no configuration in {package / 'conf'} or {package.parent / 'conf'}; install griffin-evalkit again"
    )


def options(group: str, own: Path | None = None) -> list[str]:
    """The options of a group, such as `task`, in alphabetical order, with those of the user's `own` folder."""
    names = {path.stem for folder in _folders(own) for path in (folder / group).glob("*.yaml")}
    return sorted(names.union(_rows(group, own), PRESETS if group == "preset" else ()))


def headline(group: str, option: str, own: Path | None = None) -> str:
    """What an option is: the first comment line of its YAML, or that of its row, the user's before ours."""
    path = file(group, option, own)
    if path is not None:
        return next((line[2:] for line in _text(path).splitlines() if line.startswith("# ") and line[2] != "@"), "")
    return {**PRESETS, **_rows(group, own)}.get(option, "")


def file(group: str, option: str, own: Path | None = None) -> Path | None:
    """The YAML of an option, the user's before ours; None where there is none."""
    return next((path for folder in _folders(own) if (path := folder / group / f"{option}.yaml").is_file()), None)


def experiment_file(name: str, own: Path | None = None) -> Path | None:
    """The file of an experiment: of that name, or `name` itself if it ends in `.yaml`; None where there is none."""
    if not name.endswith(".yaml"):
        return file("experiment", name, own)
    path = typed_path(name)
    return path if path.is_file() else None


def row_files(group: str, own: Path | None = None) -> list[Path]:
    """The files of a group whose options are rows of one file, the user's before ours."""
    return [path for folder in _folders(own) if (path := folder / f"{group}.yaml").is_file()]


def recipe_files(task: str, own: Path | None = None) -> list[Path]:
    """The files with recipes of a task, ours before the user's: that of its name, or one that has it in its `tasks`."""
    files = []
    for folder in reversed(_folders(own)):
        path = folder / "recipe" / f"{task}.yaml"
        others = (folder / "recipe").glob("*.yaml") if not path.is_file() else ()
        files += [path] if path.is_file() else [other for other in others if task in _tasks(other)]
    return files


def packages(own: Path) -> list[str]:
    """The packages that the YAML of the user's `own` folder names by `_target_`."""
    return sorted(set(map(package_of, targets(own))))


def targets(own: Path) -> list[str]:
    """What the YAML of the user's `own` folder names by `_target_`."""
    return sorted({target for path in _files_of(own, *OF_GROUPS) for target in TARGET.findall(_text(path))})


def refuse_other_encodings(own: Path) -> None:
    """Raises UserError for a YAML of the user's `own` folder that is not UTF-8."""
    for path in _files_of(own, "*.yaml", *OF_GROUPS):
        try:
            text_of(path)
        except ValueError as error:
            raise UserError(str(error)) from error


def stamps(own: Path) -> tuple[Stamp, ...]:
    """The YAML files of the user's `own` folder with times and sizes, which change whenever a file is written."""
    files = [(str(path), path.stat()) for path in _files_of(own, "*.yaml", *OF_GROUPS)]
    return tuple((name, status.st_mtime_ns, status.st_size) for name, status in files)


def documented(target: str) -> str | None:
    """The name in our YAML of a `target` that has an old name or a wrong module of ours; None where there is none."""
    last = target.rpartition(".")[2]
    if target in MOVED or not target.startswith("evalkit."):
        return MOVED.get(target)
    ours = {name for path in sorted(directory().rglob("*.yaml")) for name in TARGET.findall(_text(path))}
    return next(
        (name for name in sorted(ours.union(MOVED.values())) if name.rpartition(".")[2] == last and name != target),
        None,
    )


def is_suite(experiment: str, own: Path | None = None) -> bool:
    """Whether an experiment has tasks and models of a suite, which are chosen by `task=` and `model=` beside it."""
    seen = set[Path]()
    path = experiment_file(experiment, own)
    while path is not None and path not in seen:
        if any(line.startswith("suite:") for line in _text(path).splitlines()):
            return True
        seen.add(path)
        like = LIKE.search(_text(path))
        path = None if like is None else experiment_file(like[1], own)
    return False


def _rows(group: str, own: Path | None) -> dict[str, str]:
    """The options that are rows of one file, each with the comment at the end of its line, if it has one."""
    return {name: comment for path in reversed(row_files(group, own)) for name, comment in ROW.findall(_text(path))}


def _files_of(own: Path, *patterns: str) -> list[Path]:
    """The YAML of a folder, without what macOS and editors hide beside it."""
    files = [path for pattern in patterns for path in own.glob(pattern) if path.is_file()]
    return [path for path in files if not path.name.startswith(".")]


def _tasks(recipe: Path) -> list[Any]:
    """The tasks that a file of recipes names besides that of its own name."""
    text = _text(recipe)
    if not TASKS.search(text):  # to read the whole takes longer
        return []
    try:
        named = yaml.safe_load(text).get("tasks")
    except (yaml.YAMLError, AttributeError):  # whoever asks for this file is told
        return []
    return named if isinstance(named, list) else [named]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _folders(own: Path | None) -> list[Path]:
    return [directory()] if own is None else [own, directory()]
