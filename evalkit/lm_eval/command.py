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
from dataclasses import fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, NoReturn, get_type_hints

from lm_eval import evaluator
from lm_eval.api.registry import get_model
from lm_eval.config.evaluate_config import DICT_KEYS, EvaluatorConfig
from lm_eval.tasks import TaskManager
from lm_eval.utils import setup_logging

from evalkit.checks import refuse_other_types
from evalkit.configuration.experiment import AUTO
from evalkit.core.errors import UserError, first_line, typed_path, writing
from evalkit.evaluations.downstream import data_sets, table1
from evalkit.evaluations.downstream.language_model import PretrainedLM, refuse_unserved, wanted_of
from evalkit.evaluations.downstream.objects import UNSAFE, read, refuse_examples, refuse_other_input, tasks_of
from evalkit.lm_eval import private, prompts
from evalkit.lm_eval.model import EvalkitLM
from evalkit.parallel import devices
from evalkit.session.compilation import keep_programs

Results = dict[str, Any]


# Settings for drawing tokens, and the values at which they have no effect.
DRAWING = {"temperature": (0,), "top_k": (0, -1), "top_p": (1,)}
SAMPLES = """'{"TASK": [0, 1]}'"""
PRETRAINED = "a run, a released model's folder, or its name on the hub"


LOGS = {
    "hf_hub_log_args": ("lm_eval.loggers", "EvaluationTracker"),
    "wandb_args": ("wandb", "init"),
    "trackio_args": ("trackio", "init"),
}
"""The class or function to which lm-eval passes the arguments of each flag."""
STEP = "step"
"""An argument that lm-eval removes before it passes on the others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs lm-eval's command and returns its exit code; what a user can mend is one line on stderr.

    Two flags more than lm-eval's: `--data_path FOLDER` for data sets on disk (see `data_sets.localise`), and
    `--bootstrap_iters N`, which lm-eval sets to 100,000 and which is 0 here, as its processes fork under JAX.
    """
    devices.use_every_core()
    devices.spare_memory()
    keep_programs(AUTO)
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
        private.say_why(parser)
    taken = [name for name in inspect.signature(PretrainedLM).parameters if name != "pretrained"]
    ours = choices["run"].add_argument_group(
        "evalkit",
        f"--model evalkit takes --model_args pretrained=CHECKPOINT, {PRETRAINED}; and {', '.join(taken)}. "
        f"Tasks of evalkit: {', '.join(_own_tasks())}.",
    )
    ours.add_argument("--data_path", type=typed_path, metavar="<folder>", help="data sets on disk, not the hub's")
    ours.add_argument("--bootstrap_iters", type=_count, default=0, metavar="<n>", help="of standard errors; 0: none")
    example = "python -m evalkit lm-eval run --model evalkit --model_args pretrained=RUN --tasks griffin_table1"
    for parser in (choices[""], choices["run"]):
        parser.epilog = f"of evalkit:\n  {example}\n\n{textwrap.dedent(parser.epilog or '').strip()}"
    return harness


def _count(text: str) -> int:
    """The number of resamples that `text` says, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: 0 or more")
    return int(text)


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
    configuration = _configuration(parsed)
    names = _names(configuration.tasks)
    kept: list[Results] = []
    with TemporaryDirectory() as localised:
        include = [data_sets.TASKS, *_folders(configuration.include_path), Path(localised)]
        unclear = [name for name in names if set(name) & set("*?[/") or name.endswith(".yaml")]
        if unclear and data_path is not None:
            raise UserError(f"--data_path goes with names of tasks and groups, not with {unclear[0]!r}; name them")
        if names and not unclear:
            index = data_sets.manager(names, {}, include[1:-1])
            needed = data_sets.needed(index, names)
            if data_path is None:
                data_sets.refuse_unreachable(needed, "--data_path FOLDER")
            else:
                data_sets.localise(index, needed, data_path, include[-1], shots=configuration.num_fewshot)
        configuration.include_path = include  # type: ignore[assignment]

        def evaluated(**settings: Any) -> Results:
            kept.append(evaluate(**settings, bootstrap_iters=bootstrap_iters))
            return dict(kept[-1])

        with private.configured_by(configuration), private.choosing_tasks(), private.evaluating_by(evaluated):
            harness.execute(parsed)
    for results in kept:
        print(table1.beside_the_paper(results["results"]), end="")


def _configuration(parsed: argparse.Namespace) -> EvaluatorConfig:
    """What the flags and `--config FILE` say together; raises UserError for what lm-eval refuses of it."""
    try:
        if parsed.config:
            stated = EvaluatorConfig.load_yaml_config(parsed.config)
            allowed = [field.name for field in fields(EvaluatorConfig)]
            unknown = [name for name in stated if name not in allowed]
            if unknown:
                raise ValueError(f"unknown key {unknown[0]!r}; allowed: {', '.join(allowed)}")
            hints = get_type_hints(EvaluatorConfig)
            texts = {name: hints[name] | str | None for name in DICT_KEYS}  # which lm-eval reads as a command's words
            refuse_other_types(stated, {**hints, **texts, "batch_size": int | str})
        configuration = EvaluatorConfig.from_cli(parsed)
        if not isinstance(configuration.samples, Mapping | None):
            raise ValueError(
                f"--samples {configuration.samples!r} names no documents; give JSON or its file: {SAMPLES}"
            )
        _refuse_places(configuration)
        _refuse_unlogged(configuration)
        return configuration
    except (OSError, TypeError, ValueError) as error:
        place = f"--config {parsed.config}: " if parsed.config else ""
        raise UserError(f"{place}{error}") from error


def _refuse_places(configuration: EvaluatorConfig) -> None:
    """Raises UserError for folders that cannot be written: lm-eval would lose its results with a warning."""
    output, cache = configuration.output_path, configuration.use_cache
    folders = [Path(output).parent if output.endswith(".json") else Path(output)] if output else []
    for folder in [*folders, *([Path(cache).parent] if cache else [])]:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            NamedTemporaryFile(dir=folder).close()


def _refuse_unlogged(configuration: EvaluatorConfig) -> None:
    """Raises UserError for an unknown argument of a log; lm-eval would raise TypeError, for the hub after the work."""
    for flag, (module, function) in LOGS.items():
        named = getattr(configuration, flag, None)
        if not named or find_spec(module) is None:
            continue
        takes = inspect.signature(getattr(import_module(module), function)).parameters
        known = [*takes, *(() if flag == "hf_hub_log_args" else [STEP])]
        unknown = [name for name in named if name not in known]
        if unknown:
            raise UserError(f"--{flag} {unknown[0]} is unknown; allowed: {', '.join(known)}")


def _names(tasks: str | Sequence[Any] | None) -> list[str]:
    """The tasks of a command or of a file, which may have commas between; raises UserError for none."""
    texts = [tasks] if isinstance(tasks, str) else list(tasks or [])
    unnamed = [text for text in texts if not isinstance(text, str)]
    if unnamed:
        raise UserError(f"tasks: {unnamed[0]!r} is no name; give names, such as tasks: [piqa]")
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--tasks is missing; give --tasks NAME, which python -m evalkit lm-eval ls tasks lists")
    return names


def _folders(include_path: str | Sequence[str] | None) -> list[Path]:
    """The folders of tasks that a user gives; raises UserError for one that is not there."""
    given = [include_path] if isinstance(include_path, str) else list(include_path or [])
    folders = [typed_path(text) for text in given]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--include_path {folder} is no folder; give one with tasks of yours")
    return folders


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
    """Calls lm-eval's `simple_evaluate` with `settings`; the data are read before the weights.

    A response cache belongs to one checkpoint and its settings, so their fingerprint is part of its name. Prompts are
    kept by what they were made from (`prompts`). Raises UserError, before weights are read, for an impossible request.
    """
    if settings.get("check_integrity"):
        raise UserError("--check_integrity runs tests that lm-eval's package has not; leave it out")
    objects = read(task_manager, tasks, "--data_path FOLDER")
    _refuse_questions(objects, settings)
    _refuse_unsafe(objects, settings)
    chosen: Any = model
    identity: list[Any] = [model, dict(model_args)]
    if model == "evalkit":
        chosen = EvalkitLM(**{"device": settings.get("device"), **model_args})
        template = chosen.chat_template(settings.get("apply_chat_template", False))
        if template and settings.get("system_instruction"):
            chosen.refuse_system(settings["system_instruction"])
        _refuse_generation(objects, settings.get("gen_kwargs") or {})
        if use_cache or settings.get("cache_requests"):  # reads the weights
            identity = [chosen.fingerprint, *filter(None, [template])]
            use_cache = use_cache and f"{use_cache}_{chosen.fingerprint}"
    else:
        _refuse_unknown(model)
    if settings.get("delete_requests_cache"):
        shutil.rmtree(prompts.folder(), ignore_errors=True)
    keeping: AbstractContextManager[object] = nullcontext()
    if settings.get("cache_requests"):  # else a user needs no home
        place = prompts.folder()
        identity.append(
            {"fewshot_random_seed": settings.get("fewshot_random_seed")}
        )  # draws the examples that are shown
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


def _refuse_questions(objects: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Raises UserError for an impossible number of examples or documents, and for documents that do not exist."""
    shots, limit = settings.get("num_fewshot"), settings.get("limit")
    if shots is not None and shots < 0:
        raise UserError(f"--num_fewshot {shots}; allowed: 0 or more")
    if limit is not None and not (0 < limit < 1 or (limit >= 1 and float(limit).is_integer())):
        raise UserError(f"--limit {limit:g}; allowed: a number of documents, or a share below 1")
    refuse_examples(objects, shots)
    sizes = {task.config.task: len(task.eval_docs) for task in tasks_of(objects)}
    for task, indices in (settings.get("samples") or {}).items():
        if task not in sizes:
            raise UserError(f"--samples names {task!r}, which is not run; allowed: {', '.join(sizes)}")
        if not (isinstance(indices, list) and indices):
            raise UserError(f"--samples gives {indices!r} for {task}; give the documents' numbers: {SAMPLES}")
        wrong = [index for index in indices if not (isinstance(index, int) and 0 <= index < sizes[task])]
        if wrong:
            raise UserError(f"--samples names document {wrong[0]} of {task}; allowed: 0 to {sizes[task] - 1}")


def _refuse_unsafe(objects: Sequence[Any], settings: Mapping[str, Any]) -> None:
    """Raises UserError for a task that shows images, or runs code of the model without its user's leave."""
    for task in tasks_of(objects):
        config = vars(task.config)
        refuse_other_input(config["task"], config)
        if config.get(UNSAFE) and not settings.get("confirm_run_unsafe_code"):
            raise UserError(f"task {config['task']} runs code that the model wrote; give --confirm_run_unsafe_code too")


def _refuse_generation(objects: Sequence[Any], stated: Mapping[str, Any]) -> None:
    """Raises UserError for generation settings that are not supported, and for given ones that have no effect."""
    for task in tasks_of(objects):
        name, output_type = task.config.task, task.get_config("output_type")
        wanted = {**(task.get_config("generation_kwargs") or {}), **stated}
        refuse_unserved(name, output_type, wanted)
        drawing = [key for key, nothing in DRAWING.items() if stated.get(key) not in (None, *nothing)]
        if output_type == "generate_until" and drawing and not wanted_of(wanted).sampler.temperature:
            raise UserError(
                f"task {name}: --gen_kwargs {drawing[0]}={stated[drawing[0]]} means nothing where the likeliest token "
                "is taken; give do_sample=true too, and a temperature above 0"
            )


def _refuse_unknown(model: str) -> None:
    """Raises UserError for a model that lm-eval does not know, or whose packages are not installed."""
    try:
        get_model(model)
    except (ImportError, KeyError, ValueError) as error:
        raise UserError(f"--model {model}: {first_line(error)}; give --model evalkit for models of ours") from error
