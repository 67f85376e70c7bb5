"""What can be measured, and the settings of each bench; read before anything heavy is imported."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalkit.core.errors import UserError, typed_path

PURPOSE = {
    "train": "a training step: compilation, time, rate, memory, and the time of its parts",
    "evaluate": "the streamed forward pass of the evaluation",
    "start": "from the command to the first training step",
    "scan": "the recurrence alone, by every implementation, against a copy",
    "state": "the matrix-state recurrence, by chunks and by a loop",
    "cost": "nothing is timed: what models keep and compute a token, and which limit of a machine that meets",
    "steps": "a training step by the length of its sequences (fig. 3), models in turn, beside the first model's",
    "decode": "seconds to decode after a prefill (fig. 4), beside equation 5 and this machine's limits",
    "throughput": "tokens a second at the largest batch that fits (fig. 1b), beside the same",
}
# The bench's own settings, with their defaults, whose types say what is allowed; every other key is the experiment's.
OWN: Mapping[str, Mapping[str, Any]] = {
    "train": {"repeats": 10, "steps": 4},
    "evaluate": {"repeats": 5, "length": 16384, "batch_size": 1, "chunk": 1024},
    "start": {"repeats": 3},
    # The paper's batch, width and longest length (figure 8a).
    "scan": {"batch": 8, "width": 1024, "shortest": 512, "longest": 131072, "repeats": 5, "patience": 1},
    "state": {"batch": 32, "heads": 4, "keys": 16, "values": 16, "shortest": 256, "longest": 256, "repeats": 5}
    | {"patience": 5},
    # The paper's training length and its TPU-v3 (table 3). It names no vocabulary; 32,000 is usual for its tokenizer.
    "cost": {"length": 2048, "batch": 16, "vocab_size": 32000, "bytes": 2}
    | {"memory_gb": 32.0, "bandwidth_gb_per_s": 900.0, "tflops": 123.0, "mesh": "auto", "gather": "step"},
    # As many tokens a batch as two cores take in a second or so, and a small vocabulary, which all models pay alike.
    "steps": {"lengths": [256, 512, 1024, 2048, 4096, 8192], "tokens": 8192, "vocab_size": 256, "repeats": 7}
    | {"out": "runs/bench/steps"},
    # Figure 4's own.
    "decode": {"prefill": [0, 4096], "tokens": [128, 256, 512, 1024, 2048, 4096], "batch": 16, "vocab_size": 32000}
    | {"repeats": 3, "out": "runs/bench/decode"},
    # Figure 1b's lengths. A CPU with memory for thousands of rows is long bound by compute at 64.
    "throughput": {"tokens": [512, 1024, 2048, 4096], "memory_gb": 4.0, "most": 64, "vocab_size": 32000}
    | {"repeats": 3, "out": "runs/bench/throughput"},
}
# The benches of an operation alone, which no experiment sets, and those of models without a task.
ALONE, OF_MODELS = ("scan", "state"), ("cost", "steps", "decode", "throughput")
# Settings that may be 0: an empty prefill.
FROM_0 = ("prefill",)


def split(what: str, settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The bench's own settings, and the experiment's or the model's overrides; raises UserError."""
    own, rest = dict(OWN[what]), []
    for text in settings:
        key, _, value = text.partition("=")
        if key == "kernel" and what == "train":
            rest.append(f"model.mixers.recurrent.implementation={value}")
        elif key in own:
            own[key] = str(typed_path(value)) if key == "out" and value else _read(text, value, OWN[what][key])
        else:
            rest.append(text)
    return own, rest


def output_format(what: str, settings: Sequence[str]) -> tuple[str, list[str]]:
    """The format in which a bench without an experiment answers, and the other settings; raises UserError."""
    shapes = {"format=text": "text", "format=json": "json"}
    rest = [text for text in settings if text not in shapes]
    for text in rest:
        if what in ALONE or text.startswith("format="):
            raise UserError(f"{text} is no setting of {what}; allowed: {', '.join(OWN[what])}, format (text or json)")
    return next((shapes[text] for text in reversed(settings) if text in shapes), "text"), rest


def _read(text: str, value: str, default: Any) -> Any:
    """The value of one setting, of the type of its default."""
    key = text.partition("=")[0]
    read, allowed = READERS[type(default)]
    setting = read(value)
    if setting is None or (isinstance(setting, list) and setting[0] < 1 and key not in FROM_0):
        least = "" if key in FROM_0 or not isinstance(default, list) else ", from 1"
        raise UserError(f"{text}; allowed: {key}= {allowed}{least}")
    return setting


def _whole(value: str) -> int | None:
    return int(value) if value.isdecimal() and int(value) >= 1 else None


def _positive(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def _list(value: str) -> list[int] | None:
    numbers = value.removeprefix("[").removesuffix("]").split(",")
    if not value.startswith("[") or not value.endswith("]") or not all(text.strip().isdecimal() for text in numbers):
        return None
    return sorted({int(text) for text in numbers})


READERS: Mapping[type, tuple[Callable[[str], Any], str]] = {
    int: (_whole, "a whole number, 1 or more"),
    float: (_positive, "a number above 0"),
    list: (_list, "whole numbers, such as [128,256]"),
    str: (lambda value: value or None, "a folder, a mesh or a word"),
}
