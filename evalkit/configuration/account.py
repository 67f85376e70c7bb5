"""What a run's model keeps between tokens and computes, as the header of its record says it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalkit.configuration.experiment import build, model_of, vocabulary
from evalkit.configuration.saved import plain_of
from evalkit.core.contracts import Evaluation, LanguageModel
from evalkit.core.errors import UserError
from evalkit.core.rows import Header


def account(model: LanguageModel, train_length: int | None, evaluation: Evaluation) -> dict[str, Any]:
    """The fields of `Header` that say what a model costs, for a sequence as in training and the longest measured."""
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
