"""The command line: `python -m evalkit VERB …`, or settings alone, `python -m evalkit task=… model=…`, for a run."""

import sys
from collections.abc import Sequence
from importlib import import_module

from evalkit.commands import VERBS, guide
from evalkit.core.errors import UserError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; what a user can mend is one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not words:
            print(guide.text())
            return 0
        # Hydra itself rejects bare words, so a verb is never one of its settings.
        verb, rest = (words[0], words[1:]) if is_verb(words[0]) else ("run", words)
        if verb not in VERBS:
            raise UserError(f"{verb!r} is no command; choose one of {', '.join(VERBS)}, or give settings as key=value")
        return import_module(f"evalkit.commands.{VERBS[verb].module}").main(rest)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # before or after a run; a run itself saves first
        return INTERRUPTED


def is_verb(word: str) -> bool:
    """Whether it is a bare word: no setting, and no flag of Hydra's."""
    return "=" not in word and not word.startswith(("-", "+", "~"))


if __name__ == "__main__":
    sys.exit(main())
