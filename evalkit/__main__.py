"""The command line: `evalkit VERB …`, or settings alone, `evalkit task=… model=…`, for a run."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from evalkit.commands import VERBS, guide
from evalkit.core import output
from evalkit.core.credentials import masked
from evalkit.core.doors import door
from evalkit.core.errors import UserError, refuse_bytes, typed_path
from evalkit.numerics import fix_process

INTERRUPTED = 130
READER_GONE = 141
"""What a shell says of a command that SIGPIPE ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; what a user can mend is one line on stderr.

    `arguments` are the words after the program's name; None is what was typed on the command line.
    """
    if arguments is None:
        _import_from_here()
        fix_process()
        output.never_failing()
        output.drop_sizes_of_nothing()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with door():
            code = _do(words)
            output.refuse_lost()
        return code
    except UserError as error:
        print(f"evalkit: {masked(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before or after a run; a run itself saves first
        return INTERRUPTED
    except BrokenPipeError:
        _leave_unwritten()
        return READER_GONE
    except SystemExit as stop:  # how argparse and Rich end
        return guide.exit_code(stop)


def _do(words: Sequence[str]) -> int:
    for word in words:
        refuse_bytes(word)
    own, words = _config_dir(words)
    if not words or words[0] in (*guide.HELP, "help"):
        print(guide.text(own))
        return 0
    if words[0] == "--version":
        print(guide.version())
        return 0
    # A bare word is a verb: Hydra itself rejects those, so it is none of its settings.
    is_verb = "=" not in words[0] and not words[0].startswith(("-", "+", "~"))
    verb, rest = (words[0], words[1:]) if is_verb else ("run", words)
    if verb not in VERBS:
        raise UserError(f"{verb!r} is no command; choose one of {', '.join(VERBS)}, or give settings as key=value")
    if own is not None and not VERBS[verb].composes:
        from evalkit.configuration import catalogue
        from evalkit.core import trust

        trust.remember(catalogue.targets(own))  # of runs that these commands read
    elif own is not None:
        from evalkit.configuration.overrides import overrides_of

        rest = [*rest, *overrides_of({"hydra.searchpath": [f"file://{own.resolve()}"]})]
    return import_module(f"evalkit.commands.{VERBS[verb].module}").main(rest)


def _config_dir(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The folder of the user's own YAML, wherever among the words it is named, and the other words."""
    folder, rest = None, []
    following = iter(words)
    for word in following:
        flag, equals, value = word.partition("=")
        if flag not in ("--config-dir", "-cd"):
            rest.append(word)
            continue
        if folder is not None:
            raise UserError("--config-dir is given twice; give one folder, with everything of your own in it")
        named = value if equals else next(following, "")
        folder = typed_path(named)
        if not named.strip() or not folder.is_dir():
            shown = f"--config-dir {named}".strip()
            raise UserError(f"{shown} is no folder; give one with task/, model/ or other groups in it")
    return folder, rest


def _import_from_here() -> None:
    """The current folder comes first among the places of modules, as `python -m` has it."""
    if not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def _leave_unwritten() -> None:
    """Drops the rest of the output, also at exit, because the program that read it has ended."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
