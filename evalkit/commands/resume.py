"""`python -m evalkit resume RUN [key=value …]`, or `resume=RUN`."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.commands.guide import HELP, Page
from evalkit.core.errors import UserError

ABOUT = """\
Go on with a run that was stopped, exactly where it stopped: the same steps, the same rows.

What may be changed of it:
  train.steps=…   more steps than it was begun with
  eval.…          what its evaluation measures at the end, as long as that has not been done
  wandb.…         where W&B gets it
  mesh=…          on which devices it goes on; distributed=true with other processes
  format=json     the last line of the output is one JSON object; quiet=true: nothing else but errors"""
EXAMPLES = (
    "resume runs/induction_heads/griffin/TIME",
    "resume RUN train.steps=9000",
    "resume RUN wandb.mode=disabled 'eval.lengths=[256,1024]'",
)


def main(arguments: Sequence[str]) -> int:
    """Goes on with a run and returns the exit code; raises UserError if it cannot."""
    return on_run("resume", arguments, ABOUT, EXAMPLES)


def existing(folder: str, overrides: Sequence[str]) -> int:
    """Goes on with the run in `folder`, with `overrides` of what may change."""
    path = run_folder(folder, "resume")
    from evalkit.configuration.composition import value_of
    from evalkit.training import connection

    with connection.connected(value_of(overrides, "distributed", False)):
        from evalkit.session import run

        return run.resume(path, list(overrides))


def changeable() -> Sequence[str]:
    """The keys that may be changed."""
    from evalkit.configuration.saved import RESUMABLE

    return RESUMABLE


def on_run(verb: str, arguments: Sequence[str], about: str, examples: Sequence[str]) -> int:
    """Hands `VERB RUN …` to the one place that reads settings, as `VERB=RUN …`; `--help` prints the verb's page."""
    from evalkit.commands import run

    if set(arguments) & set(HELP):
        page = Page(verb, about, *examples, usage="RUN [key=value …]")
        page.add_argument("run", metavar="RUN", help=f"the folder of a run; {verb}=RUN says the same")
        page.add_argument("settings", nargs="*", metavar="key=value", help="what is changed of it")
        page.print_help()
        return 0
    first = arguments[0] if arguments else ""
    if not first or first.startswith("-") or ("=" in first and not Path(first).exists()):
        raise UserError(f"{verb} needs the folder of a run first, such as {verb} runs/<task>/<model>/<time>")
    return run.main([f"{verb}={first}", *arguments[1:]])


def run_folder(folder: str, verb: str) -> Path:
    """The folder of a run, JAX ready for it; raises UserError, naming the `verb`, for what is none."""
    path = Path(folder.strip("'\"")).expanduser()
    if not (path / "config.yaml").is_file():
        state = "has no config.yaml, so it is no run" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {state}; give the folder of a run, such as {verb}=runs/<task>/<model>/<time>")
    from evalkit.core import devices

    devices.use_every_core()
    return path
