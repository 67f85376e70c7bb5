"""What `evalkit bench` measures, and how it is shown."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from evalkit.bench.settings import ALONE, OF_MODELS, output_format

if TYPE_CHECKING:
    from evalkit.configuration.experiment import Experiment

Columns = Mapping[str, tuple[str, Callable[[Any], str]]]


def _millions(number: float) -> str:
    return f"{number / 1e6:,.1f}M"


def _mebibytes(number: float) -> str:
    return f"{number / 2**20:,.4g}" if number < 1000 * 2**20 else f"{number / 2**20:,.0f}"


# What a row is, in the order of a table: the heading of each number, and how it is written.
NAMES: Columns = {
    "operation": ("operation", str),
    "implementation": ("by", str),
    "dtype": ("dtype", str),
    "pass": ("pass", str),
    "program": ("program", str),
    "times": ("times", "{:,}".format),
    "model": ("model", str),
    "settings": ("", str),
    "attention": ("attention", str),
    "length": ("length", "{:,}".format),
    "prefill": ("prefill", "{:,}".format),
    "tokens": ("tokens", "{:,}".format),
    "batch": ("batch", "{:,}".format),
}
TABLES: Sequence[Columns] = (
    {
        "ms": ("ms", "{:.3g}".format),
        "gb_per_s": ("GB/s", "{:.3g}".format),
        "of_copy": ("of a copy", "{:.0%}".format),
        "of_loop": ("of the loop's speed", "{:.1f} times".format),
    },
    {
        "ms_per_step": ("ms a step", "{:,.1f}".format),
        "of_first": ("of the first model's", "{:.2f}".format),
    },
    {
        "seconds": ("s", "{:,.3g}".format),
        "ms_per_token": ("ms a token", "{:,.3g}".format),
        "ms_lately": ("lately", "{:,.3g}".format),
        "tokens_per_s": ("tokens/s", "{:,.0f}".format),
        "equation_5_s": ("eq. 5", "{:,.3g}".format),
        "larger_s": ("larger", "{:,.3g}".format),
        "sum_s": ("sum", "{:,.3g}".format),
    },
    {
        "of_equation_5": ("measured / eq. 5", "{:.2f}".format),
        "of_larger": ("/ larger", "{:.2f}".format),
        "of_sum": ("/ sum", "{:.2f}".format),
        "caches_bytes": ("caches, MiB", _mebibytes),
        "peak_bytes": ("peak, MiB", _mebibytes),
    },
    {
        "parameters": ("parameters", _millions),
        "without_embedding": ("without embedding", _millions),
        "weight_bytes": ("weights, MiB", _mebibytes),
        "cache_bytes": ("cache of a row, MiB", _mebibytes),
        "allocated_bytes": ("as allocated here, MiB", _mebibytes),
        "flops_per_token": ("MFLOP a token", lambda flops: f"{flops / 1e6:,.0f}"),
    },
    {
        "memory_ms": ("ms to read", "{:,.3g}".format),
        "compute_ms": ("ms to compute", "{:,.3g}".format),
        "caches_equal_weights_at": ("caches as large as weights: batch", "{:,}".format),
        "compute_bound_at": ("compute-bound: batch", "{:,}".format),
        "map_compute_bound_at": ("maps alone", "{:,}".format),
        "largest_batch": ("fits in memory: batch", "{:,}".format),
        "attention_flops_per_byte": ("attention, FLOP a byte", "{:g}".format),
        "window_small_below": ("small window", "{:,}".format),
    },
    {
        "parameters_on_a_device_bytes": ("parameters on a device, MiB", _mebibytes),
        "optimizer_on_a_device_bytes": ("optimiser, MiB", _mebibytes),
        "gathered_on_a_device_bytes": ("gathered in a step, MiB", _mebibytes),
        "gradient_on_a_device_bytes": ("gradient, MiB", _mebibytes),
    },
)
"""A bench shows the tables for which its rows have numbers; each table begins with the columns of `NAMES`."""


def measure(what: str, own: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    """The result, the format in which it is wanted, and whether nothing else is to be shown."""
    import jax

    from evalkit.parallel import devices
    from evalkit.record import environment

    if what not in ALONE + OF_MODELS:
        return _of_experiment(what, own, overrides)
    wanted, rest = output_format(what, overrides)
    if what in OF_MODELS:
        if what != "steps":
            devices.spare_memory()  # as `generate` does, so that what is timed is what it runs
        devices.use_every_core()
        with jax.default_matmul_precision("highest"):
            result = _of_models(what, own, rest)
    else:
        from evalkit.bench import matrix_state, recurrence

        result = (recurrence if what == "scan" else matrix_state).measure(**own)
    return {**result, "environment": environment.describe("highest")}, wanted, False


def _of_models(what: str, own: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The result for the models that `words` choose, or the paper's three; for `cost` without words, at every scale.

    Progress is shown on stderr, so that a result on stdout stays alone.
    """
    from evalkit.bench import cost, sampling, steps
    from evalkit.configuration import models

    families = [] if any(word.startswith(("model=", "+mixer=")) for word in words) else [models.FAMILIES]
    scales = [models.SCALES] if what == "cost" and not words else []
    chosen = models.chosen([*words, *families, *scales])
    by_name = {
        "cost": cost.measure,
        "steps": steps.measure,
        "decode": sampling.latency,
        "throughput": sampling.throughput,
    }
    return by_name[what](chosen, partial(print, file=sys.stderr, flush=True), **own)


def _of_experiment(what: str, own: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], str, bool]:
    import jax

    from evalkit.bench import start, streaming, training
    from evalkit.checkpoints.loading import trainer_of
    from evalkit.configuration.spec import Spec
    from evalkit.parallel import devices
    from evalkit.record import environment

    devices.use_every_core()
    devices.compile_sooner()
    built = Spec.of(overrides).experiment
    with jax.default_matmul_precision(built.matmul_precision):
        if what == "start":
            result = start.measure(overrides, **own)
        elif what == "evaluate":
            result = streaming.measure(built, **own)
        else:
            names = {"task": built.task_name, "model": built.model_name}
            result = names | training.measure(trainer_of(_in_dispatches_of(built, own["steps"])), **own)
    return {**result, "environment": environment.describe(built.matmul_precision)}, built.format, built.quiet


def _in_dispatches_of(experiment: "Experiment", steps: int) -> "Experiment":
    """The same with dispatches of so many steps, for which as many are read."""
    _, training = experiment.trained
    every = {"log_every": steps, "eval_every": steps, "checkpoint_every": steps, "keep_every": None}
    return replace(experiment, train=replace(training, **every))


def show(console: Console, result: dict[str, Any]) -> None:
    for name, value in result.items():
        if name not in ("parts", "rows", "environment"):
            console.print(f"{name:<30} {_text(name, value)}")
    if result.get("parts"):
        console.print(_parts(result["parts"], result["ms_per_step"]))
    for table in _rows(result.get("rows", ())):
        console.print(table)


def _parts(parts: Sequence[dict[str, Any]], whole: float) -> Table:
    table = Table("part", "times", "ms", "of a step", box=None, header_style="bold")
    for part in parts:
        table.add_row(part["name"], str(part["times"]), f"{part['ms']:.1f}", f"{part['ms'] / whole:.1%}")
    total = sum(part["ms"] for part in parts)
    table.add_row("sum of parts", "", f"{total:.1f}", f"{total / whole:.1%}")
    return table


def _rows(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    names = [name for name in NAMES if any(row.get(name) not in (None, "") for row in rows)]
    for columns in TABLES:
        own = [name for name in columns if any(name in row for row in rows)]
        if not own:
            continue
        shown = {name: {**NAMES, **columns}[name] for name in (*names, *own)}
        table = Table(*(heading for heading, _ in shown.values()), box=None, header_style="bold")
        for row in rows:
            if "not_run" in row:
                table.add_row(*(shown[name][1](row[name]) for name in names), f"not run: {row['not_run']}")
                continue
            table.add_row(
                *("—" if row.get(name) is None else as_text(row[name]) for name, (_, as_text) in shown.items())
            )
        yield table


def _text(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " – ".join(_text(name, entry) for entry in value)
    if name.endswith("bytes"):
        return f"{value / 2**20:,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)
