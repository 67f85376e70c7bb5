"""`bench decode` (fig. 4) and `bench throughput` (fig. 1b): measured in turn, kept as they come, and drawn."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
from jax.stages import Compiled

from evalkit.bench import decode
from evalkit.bench.cost import GB, is_attention
from evalkit.bench.stopwatch import rates
from evalkit.configuration.models import Sized
from evalkit.configuration.positions import refuse_beyond_positions
from evalkit.core.contracts import LanguageModel, Pretrained
from evalkit.core.errors import UserError, writing
from evalkit.core.tidy import as_csv
from evalkit.inference.prefill import Prefilled
from evalkit.numerics import random_key
from evalkit.parallel.devices import accelerator_bytes, bytes_of, cores, memory_bytes, mesh_sharing
from evalkit.record import environment
from evalkit.record.files import write_text
from evalkit.reports.curves import COLOURS, Frame, save, seed_figure
from evalkit.reports.numbers import Curve, Point, grouped

Log = Callable[[str], None]
COPIES = 3
USUAL_WIDTH = 1024
"""The width of the products whose rate is measured for a model that names none."""
LIMITS = ("copy_gb_per_s", "maps_gflops", "attention_gflops")
RATIOS = {"of_equation_5": "equation_5_s", "of_larger": "larger_s", "of_sum": "sum_s"}


@dataclass(frozen=True)
class Timed:
    """A model to be timed, built of shapes: its name with the words that chose it, and the bytes of its weights."""

    name: str
    model: LanguageModel
    node: Mapping[str, Any]
    weights: int

    def limits(self, pretrained: Pretrained, batch: int) -> decode.Limits:
        """What this machine does a second at the shapes of this model, now."""
        mixers = [mixer for mixer in self.node.get("mixers", {}).values() if is_attention(mixer)]
        heads, head_dim = next(((mixer["heads"], mixer["head_dim"]) for mixer in mixers), (1, 128))
        width = self.node.get("width", USUAL_WIDTH)
        return decode.limits(pretrained, batch, width, heads, head_dim, rates(COPIES)["copy"])


class Record:
    """Measurements in `measured.jsonl` of a folder, each written as it comes, so that a stopped bench goes on.

    Raises UserError if the folder holds those of other settings, of another JAX or of other devices.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        self.file = folder / "measured.jsonl"
        settings = {**settings, "jax": jax.__version__, "devices": jax.device_count(), "cores": cores()}
        kept = []
        for line in self.file.read_text("utf-8", errors="replace").splitlines() if self.file.is_file() else ():
            with suppress(json.JSONDecodeError):  # a line that was cut short is measured again
                kept += [row] if isinstance(row := json.loads(line), dict) else []
        for name, value in settings.items():
            if kept and kept[0].get(name) != value:
                raise UserError(f"{self.file} is of {name}={kept[0].get(name)}, not {value}; give another out=FOLDER")
        self.rows = kept[1:]
        with writing(self.file):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(self.file, "".join(f"{json.dumps(row)}\n" for row in (kept or [settings])))

    def holds(self, key: Mapping[str, Any]) -> bool:
        """Whether what this key names was measured."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Keeps one more."""
        self.rows.append(row)
        with writing(self.file), self.file.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(row)}\n")


def timed(models: Sequence[Sized], vocab_size: int) -> list[Timed]:
    """The models, built as shapes alone; raises UserError for a model that cannot be built."""
    ready = []
    for sized in models:
        model = sized.built(vocab_size)
        weights = bytes_of(jax.eval_shape(model.init, random_key(0)))
        ready.append(Timed(f"{sized.name} {sized.words}".strip(), model, sized.node, weights))
    return ready


def latency(
    models: Sequence[Sized],
    log: Log,
    *,
    prefill: Sequence[int],
    tokens: Sequence[int],
    batch: int,
    vocab_size: int,
    repeats: int,
    out: str,
) -> dict[str, Any]:
    """Seconds to decode `tokens` after each `prefill`, in `repeats` rounds over all models; raises UserError."""
    shown = {"prefill": list(prefill), "tokens": list(tokens), "batch": batch, "vocab_size": vocab_size}
    ready = timed(models, vocab_size)
    for one in ready:
        _refuse_too_large(one, batch, max(1, *prefill) + tokens[-1], _memory(), "this machine has")
    record = Record(Path(out), {"bench": "decode", **shown, "models": [one.name for one in ready]})

    def measured(one: Timed, prefilled: int, when: str) -> dict[str, Any]:
        prepared = _prepared(one, batch, prefilled, tokens[-1], vocab_size)
        when = f"{when}, batch {batch}, prefill {prefilled:,}"
        return _measured(one, batch, prefilled, tokens, prepared, when, log)

    _fill(record, repeats, ready, "prefill", prefill, measured, log)
    rows = [row for prefilled in prefill for one in ready for row in _rows(record, one, prefilled)]
    frame = Frame("tokens decoded", "seconds", scale="fitted")
    for prefilled in prefill:
        panel = [row for row in rows if row["prefill"] == prefilled]
        title = f"Decoding {batch} rows after {prefilled:,} tokens"
        _draw(Path(out) / f"decode-{prefilled}.png", title, panel, "seconds", "equation_5_s", frame)
    figures = [f"decode-{prefilled}" for prefilled in prefill]
    return written(Path(out), {**shown, "repeats": repeats, "rows": rows}, figures)


def throughput(
    models: Sequence[Sized],
    log: Log,
    *,
    tokens: Sequence[int],
    memory_gb: float,
    most: int,
    vocab_size: int,
    repeats: int,
    out: str,
) -> dict[str, Any]:
    """Tokens a second at the largest batch that fits in `memory_gb`, at most `most` rows; raises UserError."""
    shown = {"tokens": list(tokens), "memory_gb": memory_gb, "most": most, "vocab_size": vocab_size}
    memory, ready = memory_gb * GB, timed(models, vocab_size)
    if memory > _memory():
        raise UserError(f"memory_gb={memory_gb:g}, but this machine has {_memory() / GB:.1f}; give less")
    for one in ready:
        _refuse_too_large(one, 1, 1 + tokens[-1], memory, f"memory_gb={memory_gb:g} has")
    record = Record(Path(out), {"bench": "throughput", **shown, "models": [one.name for one in ready]})

    def measured(one: Timed, count: int, when: str) -> dict[str, Any]:
        return _at_the_largest_batch(one, count, memory, most, vocab_size, when, log)

    _fill(record, repeats, ready, "tokens", tokens, measured, log)
    rows = [row for one in ready for count in tokens for row in _rows(record, one, 0, count)]
    frame = Frame("tokens decoded", "tokens a second", scale="fitted")
    title = f"Decoding as many rows as fit in {memory_gb:g} GB"
    _draw(Path(out) / "throughput.png", title, rows, "tokens_per_s", "equation_5_per_s", frame)
    return written(Path(out), {**shown, "repeats": repeats, "rows": rows}, ["throughput"])


def _fill(
    record: Record,
    repeats: int,
    ready: Sequence[Timed],
    name: str,
    values: Sequence[int],
    measured: Callable[[Timed, int, str], dict[str, Any]],
    log: Log,
) -> None:
    """Measures what the record lacks, in rounds over all values and models; says how many of its rows count."""
    for repeat, value, one in product(range(repeats), values, ready):
        key = {"repeat": repeat, "model": one.name, name: value}
        if not record.holds(key):
            record.add(key | measured(one, value, f"round {repeat + 1} of {repeats}, {one.name}"))
    record.rows = [row for row in record.rows if row["repeat"] < repeats]
    log(f"{len(record.rows)} measurements of {repeats} rounds, {record.file}")


class Prepared(NamedTuple):
    """A model after its prefill, and the compiled program that goes on."""

    pretrained: Pretrained
    read: Prefilled
    run: Compiled

    @property
    def peak_bytes(self) -> int:
        """What it needs on all devices together."""
        mesh = mesh_sharing(self.pretrained.params, self.read.logits.shape[0])
        return decode.peak_bytes(self.run) * mesh.size


def _prepared(one: Timed, batch: int, prefilled: int, room: int, vocab_size: int) -> Prepared:
    pretrained = decode.with_parameters(one.model, batch)
    read = decode.read_prompts(pretrained, batch, prefilled, room, vocab_size)
    return Prepared(pretrained, read, decode.program(pretrained, read))


def _measured(
    one: Timed, batch: int, prefilled: int, tokens: Sequence[int], ready: Prepared, when: str, log: Log
) -> dict[str, Any]:
    """One decoding with the machine's limits measured beside it."""
    limits = one.limits(ready.pretrained, batch)
    seconds = decode.seconds(
        ready.run,
        ready.pretrained.params,
        ready.read,
        tokens,
        lambda count, taken: log(f"{when}: {count:,} tokens in {taken:,.1f} s"),
    )
    predicted = decode.predicted(one.model, one.weights, batch, prefilled, tokens, limits)
    return {
        "batch": batch,
        "weight_bytes": one.weights,
        "caches_bytes": one.model.cache_bytes(batch, max(1, prefilled) + tokens[-1]),
        "copy_gb_per_s": limits.copy / 1e9,
        "maps_gflops": limits.maps / 1e9,
        "attention_gflops": limits.attention / 1e9,
        "at": [
            {"tokens": count, "seconds": taken, **dict(zip(RATIOS.values(), each, strict=True))}
            for count, taken, each in zip(tokens, seconds, predicted, strict=True)
        ],
        "peak_bytes": ready.peak_bytes,
    }


def _at_the_largest_batch(
    one: Timed, count: int, memory: float, most: int, vocab_size: int, when: str, log: Log
) -> dict[str, Any]:
    """As `_measured`, with the batch that `cache_bytes` leaves room for, less where the compiled program needs more."""
    batch = largest_batch(one, count, memory, most)
    while True:
        ready = _prepared(one, batch, 0, count, vocab_size)
        if ready.peak_bytes <= memory or batch == 1:
            return _measured(one, batch, 0, [count], ready, f"{when}, batch {batch}", log)
        fits = int(batch * (memory - one.weights) / (ready.peak_bytes - one.weights))
        batch = _shared(max(1, min(batch - 1, fits)))


def largest_batch(one: Timed, count: int, memory: float, most: int) -> int:
    """How many rows of `count` tokens fit beside the weights by `cache_bytes`, at most `most`; at least one.

    More rows than devices are a multiple of these, since whole rows are split over them.
    """
    fits = int((memory - one.weights) // max(1, one.model.cache_bytes(1, 1 + count)))
    return _shared(max(1, min(most, fits)))


def _shared(batch: int) -> int:
    """The batch that all devices share evenly, unless there are fewer rows than devices."""
    devices = jax.device_count()
    return batch if batch < devices else batch - batch % devices


def _rows(record: Record, one: Timed, prefilled: int, count: int | None = None) -> Iterator[dict[str, Any]]:
    """A row for each number of tokens, its numbers the medians of the rounds, ratios taken within a round."""
    key = {"model": one.name} | ({"prefill": prefilled} if count is None else {"tokens": count})
    rounds = [row for row in record.rows if key.items() <= row.items()]
    for index, first in enumerate(rounds[0]["at"]):
        each = [row["at"][index] for row in rounds]
        taken = median(at["seconds"] for at in each)
        batch = int(median(row["batch"] for row in rounds))
        yield {
            "model": one.name,
            "prefill": prefilled,
            "tokens": first["tokens"],
            "batch": batch,
            "seconds": taken,
            "ms_per_token": taken / first["tokens"] * 1e3,
            "ms_lately": median(_ms_lately(row["at"], index) for row in rounds),
            "tokens_per_s": batch * first["tokens"] / taken,
            **{name: median(at[name] for at in each) for name in RATIOS.values()},
            "equation_5_per_s": batch * first["tokens"] / median(at["equation_5_s"] for at in each),
            **{ratio: median(at["seconds"] / at[name] for at in each) for ratio, name in RATIOS.items()},
            "rounds_s": [at["seconds"] for at in each],
            **{name: median(row[name] for row in rounds) for name in LIMITS},
            "caches_bytes": rounds[0]["caches_bytes"],
            "peak_bytes": max(row["peak_bytes"] for row in rounds),
        }


def _ms_lately(at: Sequence[Mapping[str, float]], index: int) -> float:
    """Milliseconds a token since the mark before: what a token takes at this length, not on average until it."""
    before = at[index - 1] if index else {"seconds": 0.0, "tokens": 0}
    return (at[index]["seconds"] - before["seconds"]) / (at[index]["tokens"] - before["tokens"]) * 1e3


def _draw(file: Path, title: str, rows: Sequence[dict[str, Any]], value: str, predicted: str, frame: Frame) -> None:
    """A line a model of what was measured, and a dashed one of equation 5 by this machine's copy bandwidth."""
    notes = ["Dashed: equation 5, weights and caches read at this machine's copy bandwidth."]
    dashed = [curve.relabel("") for curve in curves_of(rows, "tokens", predicted)]
    save(seed_figure(curves_of(rows, "tokens", value), frame, title, notes, dashed, COLOURS), file)


def curves_of(rows: Sequence[Mapping[str, Any]], x: str, value: str, unit: float = 1.0) -> list[Curve]:
    """One curve per model, of the column `value`, divided by `unit`, against the column `x`."""
    points = grouped((row["model"], Point(row[x], row[value] / unit)) for row in rows)
    return [Curve(model, {0: of_model}) for model, of_model in points.items()]


def written(folder: Path, result: dict[str, Any], figures: Sequence[str]) -> dict[str, Any]:
    """Writes the rows of a bench as CSV and its whole result as JSON beside its figures; returns the result."""
    result = {**result, "environment": environment.describe("highest")}
    for name, text in (("rows.csv", as_csv(result["rows"])), ("result.json", json.dumps(result, indent=1) + "\n")):
        write_text(folder / name, text)
    files = ", ".join([*(f"{name}.png" for name in figures), "rows.csv", "result.json"])
    return {**result, "wrote": f"{folder}: {files}"}


def _memory() -> float:
    """Bytes of the memory in which models are decoded."""
    return memory_bytes() if jax.default_backend() == "cpu" else accelerator_bytes()


def _refuse_too_large(one: Timed, batch: int, room: int, memory: float, whose: str) -> None:
    refuse_beyond_positions("tokens", room)
    needed = one.weights + one.model.cache_bytes(batch, room)
    if needed > memory:
        raise UserError(
            f"{one.name} takes {needed / GB:.3g} GB for batch {batch} and {room:,} tokens, and {whose} "
            f"{memory / GB:.3g}; give fewer tokens, a smaller batch or a smaller scale"
        )
