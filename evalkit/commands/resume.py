"""`python -m evalkit resume RUN [key=value …]`, or `resume=RUN`."""

from collections.abc import Sequence
from pathlib import Path

from evalkit.commands import run
from evalkit.commands.guide import HELP, Page
from evalkit.core.errors import UserError

ABOUT = """\
Go on with a run that was stopped, exactly where it stopped: the same steps, the same rows.

What may be changed of it:
  train.steps=…   more steps than it was begun with; with train.state_passing=… those pass states, and
                  train.first_states=… says what sequences begin from then
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


def on_run(verb: str, arguments: Sequence[str], about: str, examples: Sequence[str]) -> int:
    """Hands `VERB RUN …` to the one place that reads settings, as `VERB=RUN …`; `--help` prints the verb's page."""
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
