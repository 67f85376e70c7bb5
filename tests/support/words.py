"""Words of a command line: a setting in Hydra's grammar, and the experiments of figures and of studies."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalkit.configuration import catalogue

ROOT = Path(__file__).parents[2]
EXPERIMENTS = [
    *sorted((catalogue.directory() / "experiment").glob("*.yaml")),
    *sorted((ROOT / "studies").glob("*/experiments/*.yaml")),
]


def typed(value: Any) -> str:
    """A value as the word after `=`."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}: {typed(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(typed, value)) + "]"
    if isinstance(value, str):
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{quoted}'"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted key with its value, but for the names that follow from the choice."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        elif key not in ("task_name", "model_name"):
            yield key, value


def studied(name: str) -> str:
    """The word that names an experiment of a study."""
    (path,) = (path for path in EXPERIMENTS if path.stem == name)
    return f"experiment={path}"
