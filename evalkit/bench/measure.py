"""What `evalkit bench` measures, and how it is shown."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from evalkit.core.errors import UserError

# The bench's own settings, with their defaults; every other key is the experiment's.
OWN = {
    "train": {"repeats": 10, "steps": 4},
    "evaluate": {"repeats": 5, "length": 16384, "batch_size": 1, "chunk": 1024},
    "start": {"repeats": 3},
    # The paper's batch, width and longest length (figure 8a).
    "scan": {"batch": 8, "width": 1024, "shortest": 512, "longest": 131072, "repeats": 5, "patience": 1},
    "state": {"batch": 32, "heads": 4, "keys": 16, "values": 16, "shortest": 256, "longest": 256, "repeats": 5}
    | {"patience": 5},
}
PURPOSE = {
    "train": "a training step: compilation, time, rate, memory, and the time of its parts",
    "evaluate": "the streamed forward pass of the evaluation",
    "start": "from the command to the first training step",
    "scan": "the recurrence alone, by every implementation, against a copy",
    "state": "the matrix-state recurrence, by chunks and by a loop",
}
# The benches of an operation alone, which no experiment sets.
ALONE = ("scan", "state")
# What a row is, in the order of the table: its heading, and how it is written.
COLUMNS = {
    "operation": ("operation", "{}"),
    "implementation": ("by", "{}"),
    "dtype": ("dtype", "{}"),
    "pass": ("pass", "{}"),
    "length": ("length", "{:,}"),
    "ms": ("ms", "{:.3g}"),
    "gb_per_s": ("GB/s", "{:.3g}"),
    "of_copy": ("of a copy", "{:.0%}"),
    "of_loop": ("of the loop's speed", "{:.1f} times"),
}


def split(what: str, settings: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """The bench's own settings, and the experiment's overrides."""
    own, rest = dict(OWN[what]), []
    for text in settings:
        key, _, value = text.partition("=")
        if key == "kernel" and what == "train":
            rest.append(f"model.mixers.recurrent.implementation={value}")
        elif key not in own:
            rest.append(text)
        elif not value.isdecimal() or int(value) < 1:
            raise UserError(f"{text}; allowed: {key}= a whole number, 1 or more")
        else:
            own[key] = int(value)
    return own, rest


def measure(what: str, own: dict[str, int], overrides: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """The result, the format in which it is wanted, and whether nothing else is to be shown."""
    import jax

    from evalkit.bench import matrix_state, recurrence, start, streaming, training
    from evalkit.core import devices
    from evalkit.record import environment

    if what in ALONE:
        wanted = _format(what, overrides)
        alone = recurrence.measure if what == "scan" else matrix_state.measure
        return {**alone(**own), "environment": environment.describe("highest")}, wanted, False
    from evalkit.checkpoints.loading import trainer_of
    from evalkit.configuration import experiment

    devices.use_every_core()
    built = experiment.built(overrides)
    jax.config.update("jax_default_matmul_precision", built.matmul_precision)
    if what == "start":
        result = start.measure(overrides, **own)
    elif what == "evaluate":
        result = streaming.measure(built, **own)
    else:
        names = {"task": built.task_name, "model": built.model_name}
        result = names | training.measure(trainer_of(built), **own)
    return {**result, "environment": environment.describe(built.matmul_precision)}, built.format, built.quiet


def _format(what: str, settings: Sequence[str]) -> str:
    """The only setting that is not the bench's own where there is no experiment."""
    for text in settings:
        if text not in ("format=text", "format=json"):
            raise UserError(f"{text} is no setting of {what}; allowed: {', '.join(OWN[what])}, format (text or json)")
    return "json" if "format=json" in settings else "text"


def show(console: Console, result: dict[str, Any]) -> None:
    for name, value in result.items():
        if name not in ("parts", "rows", "environment"):
            console.print(f"{name:<30} {_text(name, value)}")
    if result.get("parts"):
        console.print(_parts(result["parts"], result["ms_per_step"]))
    if result.get("rows"):
        console.print(_rows(result["rows"]))


def _parts(parts: Sequence[dict[str, Any]], whole: float) -> Table:
    table = Table("part", "times", "ms", "of a step", box=None, header_style="bold")
    for part in parts:
        table.add_row(part["name"], str(part["times"]), f"{part['ms']:.1f}", f"{part['ms'] / whole:.1%}")
    total = sum(part["ms"] for part in parts)
    table.add_row("sum of parts", "", f"{total:.1f}", f"{total / whole:.1%}")
    return table


def _rows(rows: Sequence[dict[str, Any]]) -> Table:
    shown = [name for name in COLUMNS if any(name in row for row in rows)]
    table = Table(*(COLUMNS[name][0] for name in shown), box=None, header_style="bold")
    for row in rows:
        cells = [COLUMNS[name][1].format(row[name]) for name in shown if name in row]
        table.add_row(*cells, *([f"not run: {row['not_run']}"] if "not_run" in row else []))
    return table


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " – ".join(_text(name, entry) for entry in value)
    if name.endswith("bytes"):
        return f"{value / 2**20:,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)
