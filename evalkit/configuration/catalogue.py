"""What can be chosen: the options in `conf/`, found without importing JAX or Hydra."""

from pathlib import Path

from evalkit.core.errors import UserError


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
    return sorted(path.stem for path in (directory() / group).glob("*.yaml"))


def headline(group: str, option: str) -> str:
    """The first comment line of an option's YAML."""
    for line in (directory() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @"):
            return line[2:]
    return ""
