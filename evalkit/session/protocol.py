"""The protocol of a suite, which an experiment's `suite:` sets: its keys, and whether their values can be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalkit.configuration import catalogue
from evalkit.core.errors import UserError

FURTHER = 2
"""How many rates a search tries beyond the end of its grid where the best one lies."""
QUICK = "quick"
KEYS = ("rates", "search_seed", "seed", "seeds", "tasks", "models", "models_on", "sizes", "floors", "controls", QUICK)
OPTIONAL = ("models_on", "sizes", "floors", "controls", QUICK)
QUICK_KEYS = ("tasks", "rates", "seeds")
WORDS = {
    "tasks": (2, "{cpu: {mine: [task=parity]}}"),
    "models": (1, "{mine: [model=hawk]}"),
    "models_on": (2, "{parity: {mine: [model.width=32]}}"),
    "sizes": (3, "{parity: {small: {mine: [model.width=32]}}}"),
}
"""What has lists of words, how many names deep, and an example."""


def refuse_wrong(suite: Mapping[str, Any], own: Path | None) -> None:
    """Raises UserError for a key of the protocol that is unknown, or an invalid value; `own` is a folder of YAML."""
    for name in suite:
        if name not in KEYS:
            raise UserError(f"suite.{name} is unknown; a suite has {', '.join(KEYS)}")
    missing = [name for name in KEYS if name not in suite]
    if missing:
        raise UserError(f"suite.{missing[0]} is missing; a suite has {', '.join(KEYS)}")
    for name, (depth, example) in WORDS.items():
        if not _has_words(suite[name], depth):
            raise UserError(f"suite.{name}={suite[name]}; allowed: lists of words, such as {name}: {example}")
    for preset, tasks in suite["tasks"].items():
        for name, words in tasks.items():
            if not words:
                raise UserError(f"suite.tasks.{preset}.{name} is empty; give its words, such as [task=parity]")
    empty = next((name for name, words in suite["models"].items() if not words), None)
    if empty is not None or not suite["models"]:
        at = "suite.models" if empty is None else f"suite.models.{empty}"
        raise UserError(f"{at} is empty; give a model's words, such as models: {{mine: [model=hawk]}}")
    rates = suite["rates"]
    if not isinstance(rates, list) or not rates or not all(isinstance(r, int | float) and r > 0 for r in rates):
        raise UserError(f"suite.rates={rates}; allowed: a list of rates above 0, such as 'suite.rates=[1e-3,3e-3]'")
    if len({f"{rate:g}" for rate in rates}) < len(rates):
        raise UserError(f"suite.rates={rates} has a rate twice, to six digits; give each once")
    search, first, seeds = suite["search_seed"], suite["seed"], suite["seeds"]
    searched = len(rates) + 2 * FURTHER
    if all(isinstance(number, int) for number in (search, first, seeds)) and (
        search < first + seeds and first < search + searched
    ):
        raise UserError(
            f"suite.search_seed={search} begins {searched} seeds of a search, some of them among the {seeds} final "
            f"ones from suite.seed={first}, which are to be fresh; give another"
        )
    _refuse_wrong_by_task(suite, own)


def quick_form(suite: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """The quick form of a suite: some of its tasks, fewer rates and seeds, and one size of state."""
    quick = suite[QUICK]
    if not isinstance(quick, Mapping) or set(quick) != set(QUICK_KEYS):
        raise UserError(f"quick=true, and suite.quick={quick}; a quick form has {', '.join(QUICK_KEYS)}")
    if not quick["tasks"] or not _has_words(quick["tasks"], 0):
        raise UserError(f"suite.quick.tasks={quick['tasks']}; allowed: a list of the suite's tasks, such as [parity]")
    tasks = suite["tasks"].get(preset, {})
    unknown = [name for name in quick["tasks"] if name not in tasks]
    if unknown:
        raise UserError(f"suite.quick.tasks: {unknown[0]} is no task at preset={preset}; give of {', '.join(tasks)}")
    return {**suite, "sizes": {}, "rates": quick["rates"], "seeds": quick["seeds"]}


def _refuse_wrong_by_task(suite: Mapping[str, Any], own: Path | None) -> None:
    """Raises UserError for an unknown task in `floors` or `controls`, a wrong accuracy, and an unknown model."""
    floors: Mapping[str, Any] = suite["floors"]
    if not isinstance(floors, Mapping) or not all(isinstance(of_preset, Mapping) for of_preset in floors.values()):
        raise UserError(
            f"suite.floors={floors}; allowed: accuracies by preset and task, such as {{cpu: {{mqar: 0.08}}}}"
        )
    if not isinstance(suite["controls"], Mapping):
        raise UserError(f"suite.controls={suite['controls']}; allowed: a model by task, such as {{parity: lstm}}")
    tasks = {name for of_preset in suite["tasks"].values() for name in of_preset}
    by_task = {f"floors.{preset}": of_preset for preset, of_preset in floors.items()}
    for key, of_tasks in {**by_task, "controls": suite["controls"]}.items():
        for name in of_tasks:
            if name not in tasks and name not in catalogue.options("task", own):
                allowed = ", ".join(sorted(tasks))
                raise UserError(f"suite.{key}.{name}: {name} is no task of the suite; give one of {allowed}")
    for key, of_tasks in by_task.items():
        for name, floor in of_tasks.items():
            if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor < 1:
                raise UserError(f"suite.{key}.{name}={floor}; allowed: an accuracy from 0 to below 1")
    models = {*suite["models"], *catalogue.options("model", own), *catalogue.options("mixer", own)}
    for name, control in suite["controls"].items():
        if not isinstance(control, str) or control not in models:
            raise UserError(f"suite.controls.{name}={control} is no model; give one of {', '.join(sorted(models))}")


def _has_words(value: Any, depth: int) -> bool:
    """Whether there are lists of words below so many names."""
    if depth > 0:
        return isinstance(value, Mapping) and all(_has_words(below, depth - 1) for below in value.values())
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
