"""`python -m evalkit example` lists the tasks; `python -m evalkit example NAME [key=value …]` shows one, decoded."""

import inspect
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from evalkit.commands.guide import Page
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

OWN = ("length=", "seed=")
MOST = 1_000_000
SEARCHED = "hydra.searchpath="


def main(arguments: Sequence[str]) -> int:
    """Lists or shows, and returns 0; raises UserError for a task or a setting that does not exist."""
    parser = Page(
        "example",
        "List the tasks, or show an example of one, decoded.",
        "example induction_heads length=24 seed=1",
        "example selective_copying data_tokens=4",
        "example my_task --config-dir DIR",
    )
    parser.add_argument("name", nargs="?", help="a task; without it, all are listed")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="length, seed, or a setting of the task")
    searched = [text for text in arguments if text.startswith(SEARCHED)]
    parsed = parser.parse_args([text for text in arguments if text not in searched])
    console = Console(highlight=False)
    if parsed.name is None:
        _list(console, searched)
    else:
        _show(console, parsed.name, parsed.settings, searched)
    return 0


def _list(console: Console, searched: Sequence[str]) -> None:
    from evalkit.configuration.experiment import build_task
    from evalkit.configuration.grammar import own_folder

    names = catalogue.options("task", own_folder(searched))
    for name in names:
        task = build_task(name, searched)
        purpose = (inspect.getdoc(type(task)) or "").partition("\n")[0]
        console.print(Text.assemble((name, "bold"), f"  vocabulary {task.vocab_size}, length {task.length}"))
        console.print(f"  {purpose}", markup=False, soft_wrap=True)
    console.print(f"\nAn example of one: python -m evalkit example {names[0]} length=24 seed=1", soft_wrap=True)


def _show(console: Console, name: str, settings: Sequence[str], searched: Sequence[str]) -> None:
    from evalkit.configuration.experiment import build_task
    from evalkit.core.batches import feed_of

    settings = [text.removeprefix("task.") for text in settings]  # as a run has them
    task = build_task(name, [*searched, *(text for text in settings if not text.startswith(OWN))])
    length, seed = _number(settings, "length"), _number(settings, "seed") or 0
    if max(length or 0, seed) > MOST:
        raise UserError(f"length={length}, seed={seed}; an example is for reading: allowed up to {MOST}")
    try:
        shown = feed_of(task).illustrate(seed, length)
    except ValueError as error:
        raise UserError(str(error)) from error
    console.print(f"{name}, length {shown.length}, seed {seed}: {shown.sentence}\n", soft_wrap=True)
    for above, below in _lines(shown.symbols, shown.answers, console.width):
        console.print(above, markup=False, soft_wrap=True)
        console.print(Text(below, "bold green"))
    if shown.source:
        console.print(Text(shown.source, style="dim"), soft_wrap=True)


def _lines(above: Sequence[str], below: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Both rows in columns of one width, broken into lines that fit."""
    column = max(map(len, [*above, *below])) + 1
    each = max(1, (width - 1) // column)
    rows = ["".join(symbol.ljust(column) for symbol in row) for row in (above, below)]
    starts = range(0, len(above) * column, each * column)
    return [(rows[0][i : i + each * column].rstrip(), rows[1][i : i + each * column].rstrip()) for i in starts]


def _number(settings: Sequence[str], key: str) -> int | None:
    values = [text.partition("=")[2] for text in settings if text.startswith(f"{key}=")]
    try:
        number = int(values[-1]) if values else None
    except ValueError as error:
        raise UserError(f"{key}={values[-1]!r}; allowed: int") from error
    if number is not None and number < 0:
        raise UserError(f"{key}={number}; allowed: 0 or more")
    return number
