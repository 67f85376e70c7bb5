"""What can be chosen: the options in `conf/`, found without importing JAX or Hydra."""

from collections.abc import Mapping
from pathlib import Path

from evalkit.core.errors import UserError

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


def options(group: str) -> list[str]:
    """The options of a group, such as `task`, in alphabetical order."""
    if group == "preset":
        return sorted(PRESETS)
    return sorted(path.stem for path in (directory() / group).glob("*.yaml"))


def headline(group: str, option: str) -> str:
    """What an option is: the first comment line of its YAML."""
    if group == "preset":
        return PRESETS[option]
    for line in (directory() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @"):
            return line[2:]
    return ""
