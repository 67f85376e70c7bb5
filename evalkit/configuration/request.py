"""What a command line asks for: settings of a run, and the few words among them that are none."""

from collections.abc import Sequence
from typing import NamedTuple

from evalkit.core.errors import UserError

VERBS = ("resume", "evaluate")
STEP, DRY_RUN = "step", "dry_run"
BOOLEANS = {"true": True, "false": False}


class Request(NamedTuple):
    """`settings` are those of the run. With `resume=RUN` or `evaluate=RUN` there are a `verb` and the `run`.

    `step` is the checkpoint that `evaluate=` takes; `dry_run` is None where it was not typed.
    """

    settings: list[str]
    verb: str | None = None
    run: str = ""
    step: int | None = None
    dry_run: bool | None = None

    @classmethod
    def of(cls, words: Sequence[str]) -> "Request":
        """What these words ask for; raises UserError."""
        named = [word for word in words if _key(word) in VERBS]
        if not named:
            settings, values = _apart(words, DRY_RUN)
            if not set(values) <= set(BOOLEANS):
                raise UserError(f"{DRY_RUN}={values[-1]}; allowed: {DRY_RUN}=true or {DRY_RUN}=false")
            return cls(settings, dry_run=BOOLEANS[values[-1]] if values else None)
        verb, _, run = named[0].partition("=")
        if len(named) > 1:
            raise UserError(f"{verb}=RUN takes one run at a time; give one {verb}=, without -m")
        rest = [word for word in words if word not in named]
        settings, steps = _apart(rest, STEP) if verb == "evaluate" else (rest, [])
        if len(steps) > 1 or not all(step.isdecimal() for step in steps):
            raise UserError(
                f"step={', '.join(steps)}; give one number of training steps, or leave step= out for the newest"
            )
        return cls(settings, verb, run.strip("'\""), int(steps[0]) if steps else None)


def _apart(words: Sequence[str], key: str) -> tuple[list[str], list[str]]:
    """The words that do not set `key`, and the values of those that do."""
    return [word for word in words if _key(word) != key], [
        word.partition("=")[2] for word in words if _key(word) == key
    ]


def _key(word: str) -> str | None:
    key, equals, _ = word.lstrip("+").partition("=")
    return key if equals else None
