"""`python -m evalkit.tasks` lists the tasks; `python -m evalkit.tasks NAME [key=value …]` shows an example, decoded."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from evalkit.core.contracts import Task, Texts

SHOWN_LENGTH = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evalkit.tasks", description="List the tasks, or show one's example."
    )
    parser.add_argument("name", nargs="?", help="a task; without it, all are listed")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="length, seed, or a setting of the task")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    try:
        catalogue.refuse_foreign_packages()
        if given.name is None:
            _list(console)
        else:
            _show(console, given.name, given.settings)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _list(console: Console) -> None:
    # Not above: this imports our package `tasks`, and a foreign one in the current folder is to be named first.
    from evalkit.configuration.experiment import build_task

    names = catalogue.options("task")
    for name in names:
        task = build_task(name)
        purpose = (inspect.getdoc(type(task)) or "").partition("\n")[0]
        console.print(Text.assemble((name, "bold"), f"  vocabulary {task.vocab_size}, length {task.length}"))
        console.print(f"  {purpose}", markup=False, soft_wrap=True)
    console.print(
        f"\nAn example of one: python -m evalkit.tasks {names[0]} length={SHOWN_LENGTH} seed=1", soft_wrap=True
    )


def _show(console: Console, name: str, settings: Sequence[str]) -> None:
    import jax
    import numpy as np

    from evalkit.configuration.experiment import build_task
    from evalkit.core.batches import is_text

    own = [text for text in settings if not text.startswith(("length=", "seed="))]
    task = build_task(name, own)
    length = _number(settings, "length", _shown_length(task))
    seed = _number(settings, "seed", 0)
    try:
        if is_text(task):
            _show_text(console, task, name, length, seed)
            return
        example = task.sample(jax.random.key(seed), length)
    except ValueError as error:
        raise UserError(str(error)) from error
    console.print(
        f"{name}, length {length}, seed {seed}: the answers stand below the positions where they are due\n",
        soft_wrap=True,
    )
    tokens, targets, mask = (np.asarray(field) for field in example[:3])
    answers = [symbol if scored else "" for symbol, scored in zip(_symbols(task, targets), mask, strict=True)]
    for above, below in _lines(_symbols(task, tokens), answers, console.width):
        console.print(above, markup=False)
        console.print(Text(below, "bold green"))


def _show_text(console: Console, task: "Texts", name: str, length: int, seed: int) -> None:
    task.prepare()
    window = task.windows(seed, 0, 1, length)
    console.print(
        f"{name}, length {length}, seed {seed}: each token is to be told from those before it\n", soft_wrap=True
    )
    console.print(task.describe(window.tokens[0]), markup=False, soft_wrap=True)
    console.print(Text(f"\n{task.used()}", style="dim"), soft_wrap=True)


def _symbols(task: "Task", tokens: "np.ndarray") -> list[str]:
    return [task.describe(tokens[i : i + 1]) for i in range(len(tokens))]


def _lines(above: Sequence[str], below: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Both rows in columns of one width, broken into lines that fit."""
    column = max(map(len, [*above, *below])) + 1
    each = max(1, (width - 1) // column)
    rows = ["".join(symbol.ljust(column) for symbol in row) for row in (above, below)]
    starts = range(0, len(above) * column, each * column)
    return [(rows[0][i : i + each * column].rstrip(), rows[1][i : i + each * column].rstrip()) for i in starts]


def _shown_length(task: "Task | Texts") -> int:
    """A length that a line can show, or the task's own where that is too short for it, or text."""
    from evalkit.core.batches import feed_of

    try:
        feed_of(task).check_answers(SHOWN_LENGTH)
    except ValueError:  # also of a text, which has no answers
        return task.length
    return SHOWN_LENGTH


def _number(settings: Sequence[str], key: str, default: int) -> int:
    values = [text.partition("=")[2] for text in settings if text.startswith(f"{key}=")]
    try:
        number = int(values[-1]) if values else default
    except ValueError as error:
        raise UserError(f"{key}={values[-1]!r}; allowed: int") from error
    if number < 0:
        raise UserError(f"{key}={number}; allowed: 0 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
