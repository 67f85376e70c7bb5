"""What `resume=RUN` and `evaluate=RUN` do with a run that exists."""

from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.configuration.request import Request
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from evalkit.configuration.composition import Words
    from evalkit.configuration.spec import Spec


def go_on(request: Request) -> int:
    """Resumes or evaluates a run with the settings of it that may change, and returns the exit code."""
    _refuse_no_run(request)
    from evalkit.configuration.composition import parse, value_of
    from evalkit.parallel import devices
    from evalkit.parallel.layouts import connection

    devices.use_every_core()
    words = parse(request.settings)
    with connection.connected(value_of(words, "distributed", False) if request.verb == "resume" else False):
        from evalkit.session import run

        spec = spec_of(request, words)
        outcome = run.resume(spec) if request.verb == "resume" else run.evaluate(spec, request.step)
        return outcome.shown(spec.plain["format"])


def spec_of(request: Request, words: "Words") -> "Spec":
    """The run with these words; raises UserError for what is none, and for what may not be changed."""
    _refuse_no_run(request)
    from evalkit.configuration import saved
    from evalkit.configuration.spec import Spec

    allowed = saved.RESUMABLE if request.verb == "resume" else saved.EVALUABLE
    return Spec.saved(Path(request.run).expanduser(), words, allowed=allowed)


def _refuse_no_run(request: Request) -> None:
    path = Path(request.run).expanduser()
    if not (path / "config.yaml").is_file():
        state = "has no config.yaml, so it is no run" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {state}; give the folder of a run, such as {request.verb}=runs/<task>/<model>/<time>")
