"""lm-eval's own command with this project's models and tasks in it:

`python -m evalkit lm-eval run --model evalkit --model_args pretrained=CHECKPOINT --tasks griffin_table1`
"""

import argparse
import inspect
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from lm_eval.utils import setup_logging

from evalkit.core.errors import UserError
from evalkit.evaluations.downstream import data_sets, table1
from evalkit.evaluations.downstream.language_model import PretrainedLM
from evalkit.evaluations.downstream.measure import read
from evalkit.lm_eval import private, prompts
from evalkit.lm_eval.model import EvalkitLM
from evalkit.parallel import devices

Results = dict[str, Any]


PRETRAINED = "a run, a released model's folder, or its name on the hub"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs lm-eval's command and returns its exit code; what a user can mend is one line on stderr.

    Two flags more than lm-eval's: `--data_path FOLDER` for data sets on disk (see `data_sets.localise`), and
    `--bootstrap_iters N`, which lm-eval sets to 100,000 and which is 0 here, as its processes fork under JAX.
    """
    devices.use_every_core()
    devices.spare_memory()
    setup_logging()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        harness = _harness()
        parsed = private.parsed(harness, words)
        if parsed.command == "run":
            _run(harness, parsed)
        elif parsed.command == "ls":
            _list(harness, parsed)
        else:
            harness.execute(parsed)
    except UserError as error:
        print(f"evalkit: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _harness() -> private.HarnessCLI:
    """lm-eval's parsers: `run` with our flags and what our model takes, and wrong words as `UserError`."""
    harness = private.HarnessCLI()
    choices = private.parsers(harness)
    for name, parser in choices.items():
        parser.error = partial(_refuse, name)  # type: ignore[method-assign]
    taken = [name for name in inspect.signature(PretrainedLM).parameters if name != "pretrained"]
    ours = choices["run"].add_argument_group(
        "evalkit",
        f"--model evalkit takes --model_args pretrained=CHECKPOINT, {PRETRAINED}; and {', '.join(taken)}. "
        f"Tasks of evalkit: {', '.join(_own_tasks())}.",
    )
    ours.add_argument("--data_path", type=Path, metavar="<folder>", help="data sets on disk, in place of the hub's")
    ours.add_argument("--bootstrap_iters", type=int, default=0, metavar="<n>", help="of standard errors; 0: none")
    example = "python -m evalkit lm-eval run --model evalkit --model_args pretrained=RUN --tasks griffin_table1"
    for parser in (choices[""], choices["run"]):
        parser.epilog = f"of evalkit:\n  {example}\n\n{textwrap.dedent(parser.epilog or '').strip()}"
    return harness


def _refuse(name: str, message: str) -> NoReturn:
    raise UserError(f"{message}; see python -m evalkit lm-eval {name + ' ' if name else ''}--help")


def _own_tasks() -> list[str]:
    return sorted(path.stem for path in data_sets.TASKS.glob("*.yaml"))


def _list(harness: private.HarnessCLI, parsed: argparse.Namespace) -> None:
    """lm-eval's `ls`, with our tasks among them and named once more at the end, since there are thousands."""
    theirs = parsed.include_path.split(":") if parsed.include_path else []
    parsed.include_path = [data_sets.TASKS, *map(Path, theirs)]
    harness.execute(parsed)
    if parsed.what is not None:
        print(f"Of evalkit: {', '.join(_own_tasks())}")


def _run(harness: private.HarnessCLI, parsed: argparse.Namespace) -> None:
    """lm-eval's `run`, with the data sets found before it indexes its tasks and builds a model."""
    data_path, bootstrap_iters = parsed.data_path, parsed.bootstrap_iters
    for name in ("data_path", "bootstrap_iters"):  # which lm-eval does not know
        delattr(parsed, name)
    if not parsed.tasks and not parsed.config:
        raise UserError("--tasks is missing; give --tasks NAME, which python -m evalkit lm-eval ls tasks lists")
    kept: list[Results] = []
    with TemporaryDirectory() as localised:
        include = [data_sets.TASKS, *map(Path, [parsed.include_path] if parsed.include_path else []), Path(localised)]
        names = [name for text in parsed.tasks or [] for name in text.split(",")]
        unclear = [name for name in names if set(name) & set("*?[/") or name.endswith(".yaml")]
        if unclear and data_path is not None:
            raise UserError(f"--data_path goes with names of tasks and groups, not with {unclear[0]!r}; name them")
        if names and not unclear:
            index = data_sets.manager(names, {}, include[1:-1])
            needed = data_sets.needed(index, names)
            if data_path is None:
                data_sets.refuse_unreachable(needed, "--data_path FOLDER")
            else:
                data_sets.localise(index, needed, data_path, include[-1], shots=parsed.num_fewshot)
        parsed.include_path = include

        def evaluated(**settings: Any) -> Results:
            kept.append(evaluate(**settings, bootstrap_iters=bootstrap_iters))
            return dict(kept[-1])

        with private.evaluating_by(evaluated):
            harness.execute(parsed)
    for results in kept:
        print(table1.beside_the_paper(results["results"]), end="")


def evaluate(
    *,
    model: str,
    model_args: Mapping[str, Any],
    tasks: Sequence[Any],
    task_manager: TaskManager,
    use_cache: str | None = None,
    bootstrap_iters: int = 0,
    **settings: Any,
) -> Results:
    """lm-eval's `simple_evaluate`, which gets `settings`, with the data read before the weights are.

    A response cache is of one checkpoint and its settings: their fingerprint becomes part of its name. Prompts are kept
    by what they were made from (`prompts`).
    """
    objects = read(task_manager, tasks)
    chosen: Any = model
    identity: list[Any] = [model, dict(model_args)]
    if model == "evalkit":
        chosen = EvalkitLM(**model_args)
        identity = [chosen.fingerprint]
        use_cache = use_cache and f"{use_cache}_{chosen.fingerprint}"
    if settings.get("delete_requests_cache"):
        shutil.rmtree(prompts.folder(), ignore_errors=True)
    keeping: AbstractContextManager[object] = nullcontext()
    if settings.get("cache_requests"):  # else a user needs no home
        place = prompts.folder()
        keeping = private.building_requests_by(lambda original: prompts.keeping(original, place, identity))
    with keeping:
        results = evaluator.simple_evaluate(
            model=chosen,
            model_args=dict(model_args),
            tasks=objects,
            task_manager=task_manager,
            use_cache=use_cache,
            bootstrap_iters=bootstrap_iters,
            **settings,
        )
    assert results is not None, "lm-eval gives results to the first process, and there is one"
    return dict(results)
