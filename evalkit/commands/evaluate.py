"""`python -m evalkit evaluate RUN [key=value …]`, or `evaluate=RUN`."""

from collections.abc import Sequence

from evalkit.commands.resume import run_folder
from evalkit.core.errors import UserError


def main(arguments: Sequence[str]) -> int:
    """Evaluates a run again and returns the exit code; raises UserError if it cannot."""
    from evalkit.commands import run

    if not arguments or arguments[0].startswith("-"):
        raise UserError("evaluate needs the folder of a run, such as evaluate runs/<task>/<model>/<time>")
    return run.main([f"evaluate={arguments[0]}", *arguments[1:]])


def existing(folder: str, overrides: Sequence[str]) -> int:
    """Evaluates the run in `folder`, with `overrides` of its evaluation, its task or `step=`."""
    path = run_folder(folder, "evaluate")
    from evalkit.session import run

    return run.evaluate(path, list(overrides))
