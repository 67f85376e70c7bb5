"""What can be chosen: the options in `conf/`, found without importing JAX or Hydra."""

import re
from collections.abc import Mapping
from pathlib import Path

from evalkit.core.errors import UserError
from evalkit.core.trust import package_of

TARGET = re.compile(r"_target_['\"]?\s*:\s*['\"]?([A-Za-z_][\w.]*)")

PRESETS: Mapping[str, str] = {
    "cpu": "Sizes that two CPU cores train in minutes; a task that needs none of it keeps the paper's.",
    "paper": "The paper's own sizes.",
    "text": (
        "A model on text that two CPU cores train in about a quarter of an hour; "
        "the default of task=books and task=arxiv."
    ),
}
"""What `preset=` takes, a plain name, with what it means; `conf/recipe/<task>/<preset>` is what it sets."""


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
    names = set(PRESETS) if group == "preset" else set()
    return sorted(names.union(path.stem for folder in _folders(own) for path in (folder / group).glob("*.yaml")))


def headline(group: str, option: str, own: Path | None = None) -> str:
    """What an option is: the first comment line of its YAML, the user's before ours."""
    for folder in _folders(own):
        path = folder / group / f"{option}.yaml"
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return next((line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @")), "")
    return PRESETS[option] if group == "preset" else ""


def recipes(experiment: str, own: Path | None = None) -> dict[str, list[str]]:
    """The models that an experiment has recipes of, by preset: `experiment/<experiment>/<preset>/<model>.yaml`."""
    places = {place for folder in _folders(own) for place in (folder / "experiment" / experiment).glob("*/*.yaml")}
    models: dict[str, list[str]] = {}
    for preset, model in sorted({(place.parent.name, place.stem) for place in places}):
        models.setdefault(preset, []).append(model)
    return models


def packages(own: Path) -> list[str]:
    """The packages that the YAML of the user's `own` folder names by `_target_`."""
    # As deep as recipes lie: the folder may be that of a whole repository.
    found = [path for pattern in ("*/*.yaml", "*/*/*.yaml", "*/*/*/*.yaml") for path in own.glob(pattern)]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in found if path.is_file())
    return sorted({package_of(target) for text in texts for target in TARGET.findall(text)})


def is_suite(experiment: str, own: Path | None = None) -> bool:
    """Whether an experiment has tasks and models of a suite, which are chosen by `task=` and `model=` beside it."""
    paths = [path for folder in _folders(own) if (path := folder / "experiment" / f"{experiment}.yaml").is_file()]
    lines = [line for path in paths[:1] for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    return any(line.startswith("suite:") for line in lines)


def _folders(own: Path | None) -> list[Path]:
    return [directory()] if own is None else [own, directory()]
