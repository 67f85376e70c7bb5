"""What the command line says of itself: the guide, the version, and the page of each verb."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from evalkit.commands import VERBS
from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

HELP = ("-h", "--help")
GROUPS = (
    ("Tasks", "task"),
    ("Models", "model"),
    ("Scales: a model at the size of a row of the paper's table 2", "scale"),
    ("Presets", "preset"),
    ("Evaluations", "eval"),
    ("Experiments: the runs behind a figure of the paper", "experiment"),
)
COMMANDS = """\
To start with
  python -m evalkit task=induction_heads model=griffin
      generate, train, evaluate at lengths up to 64 times as long, log, report
  python -m evalkit evaluate RUN 'eval.lengths=[512,65536]'
      evaluate a run again at other lengths; RUN is its folder
  python -m evalkit compare RUN RUN RUN
      the curves of several runs in one figure

Benchmarks of lm-eval on a checkpoint: python -m evalkit task=downstream checkpoint=RUN 'task.names=[piqa]'
Any setting is key=value: seeds=3, train.steps=2000, format=json, quiet=true; -m model=mqa,hawk,griffin runs each.
All settings: python -m evalkit --cfg job task=induction_heads model=griffin
Tasks, models and evaluations of your own: --config-dir DIR, with any command; the current folder is importable."""


def refuse_no_folder(words: Sequence[str], settings: Sequence[str]) -> None:
    """Raises UserError where one of these `settings` is empty or null, which would be the current folder, or a list."""
    for text in words:
        name, equals, folder = text.lstrip("+").partition("=")
        is_none = not folder.strip("'\" ") or folder == "null" or folder.startswith(("[", "{"))
        if name in settings and equals and is_none:
            raise UserError(f"{name}={folder} names no folder; give one, such as {name}=runs/<task>/<model>/<time>")


class Page(argparse.ArgumentParser):
    """A verb's arguments and its page, `evalkit VERB --help`; `examples` stand at its end as they are typed.

    A wrong word is a `UserError`, one line that names the page.

    >>> page = Page("archive", "A run, small.", "archive RUN FOLDER")
    >>> page.prog
    'python -m evalkit archive'
    """

    def __init__(self, verb: str, about: str, *examples: str, usage: str | None = None) -> None:
        prog = f"python -m evalkit {verb}"
        shown = "\n".join(f"  python -m evalkit {example}" for example in examples)
        super().__init__(
            prog=prog,
            usage=None if usage is None else f"{prog} {usage}",
            description=about,
            epilog=f"examples:\n{shown}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raises UserError in place of argparse's own end."""
        raise UserError(f"{message}; see {self.prog} --help")


def text(own: Path | None = None) -> str:
    """The guide, with the options of the user's `own` folder; nothing heavy is imported for it."""
    parts = ["Does a model trained on 256 tokens still work on 16,384? Train it at one length, measure it at others."]
    for title, group in GROUPS:
        parts.append(f"{title} ({group}=…)\n" + "\n".join(_options(group, own)))
    verbs = "\n".join(_entry(name, verb.purpose) for name, verb in VERBS.items())
    parts.append(f"Commands (python -m evalkit COMMAND --help is the page of each)\n{verbs}")
    return "\n\n".join([*parts, COMMANDS])


def version() -> str:
    """The program and its version."""
    from importlib import metadata

    try:
        return f"evalkit {metadata.version('griffin-evalkit')}"
    except metadata.PackageNotFoundError:
        return "evalkit, from a folder that is not installed"


def exit_code(stop: SystemExit) -> int:
    """The exit code of a library that ends the process by itself; a message of it goes to stderr, as in Python."""
    if isinstance(stop.code, str):
        print(f"evalkit: {stop.code}", file=sys.stderr)
    return stop.code if isinstance(stop.code, int) else int(stop.code is not None)


def _options(group: str, own: Path | None) -> list[str]:
    return [_entry(option, catalogue.headline(group, option, own)) for option in catalogue.options(group, own)]


def _entry(name: str, meaning: str) -> str:
    """A line of the guide, folded below its own column on a terminal; in a file or a pipe it stays one line."""
    line = f"  {name:<18} {meaning}"
    if not sys.stdout.isatty():
        return line
    return textwrap.fill(line, shutil.get_terminal_size().columns, subsequent_indent=" " * 21)
