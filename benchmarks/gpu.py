"""What `gpu.sh` runs: each part writes into the JSON file as soon as it ends, and stops when its time is up."""

import argparse
import json
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.bench import recurrence, training
from evalkit.bench.recurrence import LEAST_S, Contender, call
from evalkit.bench.stopwatch import rates, spread, times
from evalkit.kernels import rglru, triton
from evalkit.models import Model, build
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.record import environment
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer
from support import kernel_oracle as oracle

SECONDS = {"oracle": 90, "marks": 60, "autotune": 120, "scan": 120, "train": 140}
"""What each part may take; together under nine minutes."""
# The paper's Table 2: width, width of the recurrence, depth. Those whose training state fits beside their activations.
HAWK = {"400M": (1536, 2048, 12), "1.3B": (2048, 2560, 24)}


def main() -> None:
    """Runs every part; one that fails leaves its traceback in the file and does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--small", action="store_true", help="tiny, in interpret mode: a try without a GPU")
    given = parser.parse_args()
    result: dict[str, Any] = {"environment": environment.describe("highest"), "small": given.small}
    for part in (check_against_oracle, marks, autotune, scan, train):
        name = part.__name__.removesuffix("_against_oracle").replace("check", "oracle")
        began = time.perf_counter()
        rows: list[dict[str, Any]] = []
        result[name] = {"rows": rows}
        try:
            for row in part(given.small):
                rows.append(row)
                print(name, json.dumps(row), flush=True)
                if time.perf_counter() - began > SECONDS[name]:
                    result[name]["stopped"] = f"its {SECONDS[name]} s were over"
                    break
        except Exception:
            result[name]["failed"] = traceback.format_exc()
            print(result[name]["failed"], flush=True)
        result[name]["seconds"] = time.perf_counter() - began
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def check_against_oracle(small: bool) -> Iterator[dict[str, Any]]:
    """The largest error of any output or gradient against float64 NumPy, as `kernel_oracle.error` measures it."""
    implementation = "triton_interpret" if small else "triton"
    shapes = oracle.FEW if small else [(1, 1, "first"), (9, 3, "consecutive"), (129, 65, "last"), (300, 200, "all")]
    for (steps, width, kind), dtype in product(shapes, (jnp.float32, jnp.bfloat16)):
        draws = np.random.default_rng(steps)
        reset = oracle.resets(kind, 2, steps)
        x, r, i, dh = (jnp.asarray(draws.normal(size=(2, steps, width)), dtype) for _ in range(4))
        h0, dlast = (jnp.asarray(draws.normal(size=(2, width)), jnp.float32) for _ in range(2))
        rate = jnp.asarray(-draws.uniform(1e-3, 2, size=width), jnp.float32)
        operation = partial(rglru, reset=jnp.asarray(reset), implementation=implementation)
        got = oracle.gradients(operation, (dh, dlast), x, r, i, rate, h0)
        wide = [np.asarray(value, np.float64) for value in (x, r, i, rate, h0)]
        expected = (
            *oracle.gated(*wide, reset, False),
            *oracle.gated_gradients(*wide, reset, False, np.asarray(dh, np.float64), np.asarray(dlast, np.float64)),
        )
        errors = [oracle.error(one, other) for one, other in zip(got, expected, strict=True)]
        wanted = oracle.TOLERANCE[jnp.dtype(dtype).name]
        yield {
            "steps": steps,
            "width": width,
            "resets": kind,
            "dtype": jnp.dtype(dtype).name,
            "error": max(errors),
            "wanted": wanted,
        }


def marks(small: bool) -> Iterator[dict[str, Any]]:
    """The two sizes that the kernel is judged by: one that fills the chip, one that only chunks of time do."""
    copy = rates(3)["copy"]
    large, narrow = ((1, 64, 64), (2, 128, 32)) if small else ((8, 8192, 4096), (32, 1024, 64))
    fused = partial(_contender, "rglru", "bfloat16", 3)
    wide = {
        "fused kernel": fused(partial(rglru, implementation=_kernel(small, None))),
        "lax.associative_scan": fused(_gated_by_pairs),
    }
    chunks = {
        "in chunks": fused(partial(rglru, implementation=_kernel(small, None))),
        "in one": fused(partial(rglru, implementation=_kernel(small, triton.Blocks(chunks=1)))),
    }
    for (batch, steps, width), contenders in ((large, wide), (narrow, chunks)):
        for backward in (False, True):
            runs = {name: call(one, batch, steps, width, backward) for name, one in contenders.items()}
            for name, seconds in times(runs, 3 if small else 10, LEAST_S).items():
                taken = spread(seconds)
                moved = contenders[name].bytes(batch * steps * width, backward)
                yield {
                    "what": name,
                    "shape": [batch, steps, width],
                    "pass": "forward+backward" if backward else "forward",
                    "ms": taken.median * 1e3,
                    "gb_per_s": moved / taken.median / 1e9,
                    "of_copy": moved / taken.median / copy,
                }


def _contender(operation: str, dtype: str, inputs: int, function: Callable[..., Any]) -> Contender:
    return Contender(operation, "", dtype, inputs, function)


def _kernel(small: bool, blocks: triton.Blocks | None) -> Any:
    return triton.kernel(blocks, interpret=small)


def _gated_by_pairs(x: jax.Array, recurrence: jax.Array, entry: jax.Array, rate: jax.Array) -> Any:
    """The gates as one writes them, `lax.associative_scan`, and JAX's own gradient."""
    log_a = jax.nn.sigmoid(recurrence.astype(jnp.float32)) * rate[None, None]
    root = jnp.sqrt(-jnp.expm1(2 * log_a))
    h, last = recurrence_by_pairs(root * jax.nn.sigmoid(entry.astype(jnp.float32)) * x, jnp.exp(log_a))
    return h.astype(x.dtype), last


recurrence_by_pairs = recurrence.plain_associative


def autotune(small: bool) -> Iterator[dict[str, Any]]:
    """The fused kernel over its blocks: channels a program, steps loaded ahead, warps, chunks of time."""
    shapes = [(2, 64, 32)] if small else [(8, 8192, 4096), (8, 2048, 1024), (32, 1024, 64)]
    grid = product((32,), (4,), (1,), (1, 2)) if small else product((32, 64, 128), (4, 8, 16), (1, 2), (None, 1, 8))
    settings = list(grid)
    for batch, steps, width in shapes:
        for channels, ahead, warps, chunks in settings:
            blocks = triton.Blocks(channels=channels, ahead=ahead, warps=warps, chunks=chunks)
            one = _contender("rglru", "bfloat16", 3, partial(rglru, implementation=_kernel(small, blocks)))
            ms = {}
            for backward in (False, True):
                run = call(one, batch, steps, width, backward)
                ms[backward] = spread(times({"": run}, 3, LEAST_S)[""]).median * 1e3
            yield {
                "shape": [batch, steps, width],
                "channels": channels,
                "ahead": ahead,
                "warps": warps,
                "chunks": chunks,
                "forward_ms": ms[False],
                "forward_backward_ms": ms[True],
            }


def scan(small: bool) -> Iterator[dict[str, Any]]:
    """Figure 8a."""
    sizes = (2, 32, 16, 32, 1, 1) if small else (8, 1024, 512, 131072, 5, 1)
    yield from recurrence.measure(*sizes)["rows"]


def train(small: bool) -> Iterator[dict[str, Any]]:
    """Figure 8b: a training step by the recurrence's implementation; and the 250K models at 32 × 256."""
    for name, model in _tiny_models().items():
        yield {"model": name, **_step(model, 2 if small else 32, 32 if small else 256)}
    for name, (width, width_rnn, depth) in ({"tiny": (32, 32, 2)} if small else HAWK).items():
        for implementation in ("auto", "sequential", "associative"):
            mixer = partial(RecurrentBlock, width_rnn=width_rnn, implementation=implementation)
            model = build(
                vocab_size=16, width=width, pattern=["r"] * depth, mixers={"r": mixer}, dtype="bfloat16"
            )  # fmt: skip
            yield {"model": f"Hawk {name}", "implementation": implementation, **_step(model, 4, 64 if small else 2048)}


def _tiny_models() -> dict[str, Model]:
    mixers = {
        "r": partial(RecurrentBlock, width_rnn=64),
        "a": partial(MQA, heads=4, head_dim=16, window=128),
        "g": partial(MQA, heads=4, head_dim=16),
    }
    patterns = {"Griffin 250K": "rrarr", "Hawk 250K": "rrrrr", "MQA 250K": "ggggg"}
    return {
        name: build(vocab_size=16, width=64, pattern=list(pattern), mixers={k: mixers[k] for k in set(pattern)})
        for name, pattern in patterns.items()
    }


def _step(model: Model, batch: int, length: int) -> dict[str, Any]:
    settings = Training(steps=1000, batch_size=batch, learning_rate=1e-3)
    return training.measure_step(Trainer(InductionHeads(length=length), model, settings, [0]), repeats=5, steps=4)


if __name__ == "__main__":
    main()
