"""`python -m evalkit check model=… task=… [eval=…] [log=…]`: whether your own parts keep their promises."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from evalkit.commands.guide import Page

ABOUT = """\
Look at every promise of a model's mixers, a task, an evaluation and sinks, your own first of all.

A line says of each whether it is kept. Of a broken one it says what was promised, what was found and where to read on.
Every training of your own mixers and tasks looks at the quick ones first. The exit code is 1 if one is broken."""


def main(arguments: Sequence[str]) -> int:
    """Prints each promise and whether it is kept; returns 1 if one is broken. Raises UserError for what cannot be."""
    parser = Page(
        "check",
        ABOUT,
        "check task=induction_heads model=griffin",
        "check --config-dir DIR task=my_task model=my_model",
        usage="[--config-dir DIR] task=… model=… [key=value …]",
    )
    parser.add_argument("settings", nargs="*", metavar="key=value", help="as for a run: task=…, model=…, eval=…")
    parsed = parser.parse_args(arguments)
    import jax

    from evalkit.configuration.spec import Spec
    from evalkit.contract.experiment import every_part
    from evalkit.parallel import devices
    from evalkit.session.compilation import keep_programs

    devices.use_every_core()
    experiment = Spec.of(parsed.settings).experiment
    keep_programs(experiment.compilation_cache)
    experiment.feed.prepare()
    console, count = Console(highlight=False), 0
    with jax.default_matmul_precision(experiment.matmul_precision):
        for part in every_part(experiment):
            broken = {error.promise.name: error for error in part.broken()}
            count += len(broken)
            console.print(Text(part.name, style="bold"))
            for promise in part.promises:
                mark = ("broken", "bold red") if promise.name in broken else ("kept  ", "green")
                console.print(Text.assemble("  ", mark, f"  {promise.name}: {promise.text}"), soft_wrap=True)
            for error in broken.values():
                console.print(Text(str(error), style="red"), soft_wrap=True)
    return 1 if count else 0
