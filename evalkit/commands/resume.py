"""`python -m evalkit resume RUN [key=value …]`, or `resume=RUN`."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.core.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Goes on with a run and returns the exit code; raises UserError if it cannot."""
    from evalkit.commands import run

    if not arguments or arguments[0].startswith("-"):
        raise UserError("resume needs the folder of a run, such as resume runs/<task>/<model>/<time>")
    return run.main([f"resume={arguments[0]}", *arguments[1:]])


def existing(folder: str, overrides: Sequence[str]) -> int:
    """Goes on with the run in `folder`, with `overrides` of what may change."""
    path = run_folder(folder, "resume")
    from evalkit.session import run

    return run.resume(path, list(overrides))


def run_folder(folder: str, verb: str) -> Path:
    """The folder of a run, JAX ready for it; raises UserError, naming the `verb`, for what is none."""
    path = Path(folder.strip("'\"")).expanduser()
    if not (path / "config.yaml").is_file():
        state = "has no config.yaml, so it is no run" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {state}; give the folder of a run, such as {verb}=runs/<task>/<model>/<time>")
    from evalkit.core import devices

    devices.use_every_core()
    return path
