"""What `resume=RUN` and `evaluate=RUN` do with a run that exists."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.core.errors import UserError

VERBS = ("resume", "evaluate")


def go_on(verb: str, folder: str, overrides: Sequence[str]) -> int:
    """Resumes or evaluates the run in `folder`, with `overrides` of what may change, and returns the exit code."""
    path = run_folder(folder, verb)
    from evalkit.configuration.composition import value_of
    from evalkit.parallel.layouts import connection

    if verb == "evaluate":
        from evalkit.session import run

        return run.evaluate(path, list(overrides))
    with connection.connected(value_of(overrides, "distributed", False)):
        from evalkit.session import run

        return run.resume(path, list(overrides))


def changeable(verb: str) -> Sequence[str]:
    """The keys that may be changed."""
    from evalkit.configuration import saved

    return {"resume": saved.RESUMABLE, "evaluate": saved.EVALUABLE}[verb]


def run_folder(folder: str, verb: str) -> Path:
    """The folder of a run, JAX ready for it; raises UserError, naming the `verb`, for what is none."""
    path = Path(folder.strip("'\"")).expanduser()
    if not (path / "config.yaml").is_file():
        state = "has no config.yaml, so it is no run" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {state}; give the folder of a run, such as {verb}=runs/<task>/<model>/<time>")
    from evalkit.parallel import devices

    devices.use_every_core()
    return path
