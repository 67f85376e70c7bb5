"""Where the experiments of figures and of studies are."""

from pathlib import Path

from evalkit.configuration import catalogue

ROOT = Path(__file__).parents[2]
EXPERIMENTS = [
    *sorted((catalogue.directory() / "experiment").glob("*.yaml")),
    *sorted((ROOT / "studies").glob("*/experiments/*.yaml")),
]


def studied(name: str) -> str:
    """The word that names an experiment of a study."""
    (path,) = (path for path in EXPERIMENTS if path.stem == name)
    return f"experiment={path}"
