"""What lm-eval has no public way for: the parsers of its command, and functions that the command calls by name.

Everything private of lm-eval's is in this file; `tests/lm_eval/test_command.py` fails where a new version moved it.
"""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import lm_eval
from lm_eval._cli import HarnessCLI
from lm_eval.api.task import Task
from lm_eval.config.evaluate_config import EvaluatorConfig
from yaml import YAMLError

from evalkit.core.errors import UserError


def parsers(harness: HarnessCLI) -> dict[str, ArgumentParser]:
    """The parser of each of lm-eval's verbs, and of the command itself under the empty name."""
    return {"": harness._parser, **harness._subparsers.choices}


def say_why(parser: ArgumentParser) -> None:
    """Makes argparse give the reason why a function of lm-eval cannot read a word, not only the function's name."""
    for action in parser._actions:
        if action.type not in (None, int, float, str):
            action.type = partial(_read, action.type)


def _read(read: Any, word: str) -> Any:
    try:
        return read(word)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def parsed(harness: HarnessCLI, words: Sequence[str]) -> Namespace:
    """What these words of a command line say; lm-eval reads them from `sys.argv`. Raises UserError."""
    with patch.object(sys, "argv", ["lm-eval", *words]):
        try:
            return harness.parse_args()
        except ValueError as error:  # of `MergeDictAction`, which argparse does not catch
            raise UserError(str(error)) from error


def configured_by(configuration: EvaluatorConfig) -> AbstractContextManager[object]:
    """Within, lm-eval's command takes this configuration, which was read before."""
    return patch.object(EvaluatorConfig, "from_cli", lambda parsed: configuration)


def choosing_tasks() -> AbstractContextManager[object]:
    """Within, tasks that lm-eval's command cannot find or read are a `UserError`."""
    choose = EvaluatorConfig.process_tasks

    def chosen(configuration: EvaluatorConfig, *metadata: Any) -> Any:
        try:
            return choose(configuration, *metadata)
        except (ValueError, YAMLError) as error:
            raise UserError(f"--tasks: {error}; python -m evalkit lm-eval ls tasks lists them all") from error

    return patch.object(EvaluatorConfig, "process_tasks", chosen)


def evaluating_by(evaluate: Callable[..., Mapping[str, Any]]) -> AbstractContextManager[object]:
    """Within, lm-eval's command evaluates by `evaluate`: it has no flag for what we add."""
    return patch.object(lm_eval, "simple_evaluate", evaluate)


def building_requests_by(
    build: Callable[[Callable[..., None]], Callable[..., None]],
) -> AbstractContextManager[object]:
    """Within, tasks build their prompts by `build` of lm-eval's own method: it has no hook for a cache of ours."""
    return patch.object(Task, "build_all_requests", build(Task.build_all_requests))
