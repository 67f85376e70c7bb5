"""Facts for the header of a run's record: notes on how it was made, and its model's cache bytes and FLOPs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalkit.configuration.experiment import Experiment, build, model_of, vocabulary
from evalkit.configuration.saved import plain_of
from evalkit.core.contracts import Evaluation, LanguageModel
from evalkit.core.errors import UserError
from evalkit.core.rows import Header
from evalkit.training.settings import FITTED_NOISE, PASSED

_EVALUATED = {
    "average": "the average of the parameters ({}) is evaluated",
    "last": "the last parameters are evaluated, not their average ({})",
}


def notes_of(experiment: Experiment, model: LanguageModel) -> list[str]:
    """One line each, derived from the configuration that ran, so that an override cannot make it untrue.

    `model` is the one that is evaluated: the experiment's own, or that of its checkpoint.
    """
    limits = list(experiment.eval.limits(model))
    if experiment.train is None:
        return limits
    notes = [
        f"{name} {actual} instead of the paper's {expected}"
        for name, expected in experiment.paper.items()
        if (actual := experiment.config["task"].get(name, expected)) != expected
    ]
    stages = experiment.train.stages(experiment.task.length)
    lengths = [stage.length for stage in stages]
    if len(lengths) > 1:
        notes.append("trained with a length curriculum: " + " → ".join(map(str, lengths)))
    if stages[-1].shortest is not None:
        notes.append(f"trained on lengths {stages[-1].shortest} to {stages[-1].length}")
    if len(experiment.train.rates) > 1:
        rates = zip(experiment.all_seeds, experiment.train.rates, strict=True)
        notes.append("a learning rate for each seed: " + ", ".join(f"{rate:g} of {seed}" for seed, rate in rates))
    if experiment.train.state_passing is not None:
        probability, facts = experiment.train.state_passing, experiment.train.stream_facts
        held = f", which holds a fact at a step with probability {facts:g}" if facts else ""
        first = {PASSED: "the state", FITTED_NOISE: "noise fitted to the state"}.get(
            experiment.train.first_states, "noise"
        )
        notes.append(
            f"trained with state passing: a sequence begins from {first} of one of "
            f"{experiment.train.streams(experiment.task.length)} streams of ordinary tokens, begun anew with "
            f"probability {probability:g}{held}"
        )
    if experiment.train.average is not None:
        decay = experiment.train.average
        kept = "the optimiser's own" if callable(decay) else f"decay {decay:g}"
        notes.append(_EVALUATED[experiment.parameters].format(kept))
    notes += limits
    if experiment.preset != "paper":
        notes.append(f"preset={experiment.preset}")
    return notes


def account(model: LanguageModel, train_length: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """The fields of `Header` on a model's costs: cache at the training and the longest evaluated length, and FLOPs."""
    longest = max((length for *_, length in evaluation.held()), default=None)
    return {
        "cache_bytes": {str(at): model.cache_bytes(1, at) for at in sorted({*filter(None, (train_length, longest))})},
        "flops_per_token": round(model.flops(train_length) / train_length) if train_length else None,
    }


def completed(runs: Sequence[tuple[Path, Header]], length: int | None = None) -> list[Header]:
    """The headers of older runs in these folders, with what their models cost, and with the state at `length`.

    It is computed from the saved configuration; a header stays as it is where that cannot be built.

    [header] = completed([(folder, header)], 1024)
    """
    models: dict[str, LanguageModel] = {}  # equal ones are built once
    return [_completed(folder / "config.yaml", header, length, models) for folder, header in runs]


def _completed(config: Path, header: Header, length: int | None, models: dict[str, LanguageModel]) -> Header:
    try:
        plain = plain_of(config)
        if plain["model"] is None:
            return header
        model, evaluation = _model(plain, models), build(plain, "eval")
    except UserError:  # of another version or machine: its numbers are shown without what it costs
        return header
    costs = account(model, header.train_length, evaluation)
    here = {} if length is None else {str(length): model.cache_bytes(1, length)}
    return replace(header, **{**costs, "cache_bytes": costs["cache_bytes"] | here})


def _model(plain: Mapping[str, Any], models: dict[str, LanguageModel]) -> LanguageModel:
    vocab_size = vocabulary(plain, build(plain, "task"))
    name = json.dumps([plain["model"], vocab_size], sort_keys=True)
    if name not in models:
        models[name] = model_of(plain["model"], vocab_size)
    return models[name]
