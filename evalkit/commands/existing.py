"""What `resume=RUN` and `evaluate=RUN` do with a run that exists."""

from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.configuration.request import Request

if TYPE_CHECKING:
    from evalkit.configuration.composition import Words
    from evalkit.configuration.spec import Spec


def go_on(request: Request) -> int:
    """Resumes or evaluates a run with the settings of it that may change, and returns the exit code."""
    from evalkit.configuration.composition import parse, value_of
    from evalkit.parallel import devices
    from evalkit.parallel.layouts import connection

    words = parse(request.settings)
    if request.verb == "evaluate":
        spec = spec_of(request, words)
        devices.use_every_core()
        from evalkit.session import run

        return run.evaluate(spec, request.step).shown(spec.plain["format"])
    devices.use_every_core()
    with connection.connected(value_of(words, "distributed", False)):
        spec = spec_of(request, words)
        from evalkit.session import run

        return run.resume(spec).shown(spec.plain["format"])


def spec_of(request: Request, words: "Words") -> "Spec":
    """The run with these words; raises UserError for what is none, and for what may not be changed."""
    from evalkit.configuration import saved
    from evalkit.configuration.spec import Spec

    allowed = saved.RESUMABLE if request.verb == "resume" else saved.EVALUABLE
    return Spec.saved(Path(request.run).expanduser(), words, allowed=allowed)
