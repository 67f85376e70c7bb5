"""The parts of `gpu.py`, a function each, which yields rows; `python gpu_parts.py PART` prints them as lines of JSON.

With `--small` all is tiny and in interpret mode.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from evalkit.bench import decode
from evalkit.bench.recurrence import LEAST_S, Contender, plain_associative
from evalkit.bench.stopwatch import compiled, name_of_pass, quartiles, rates, times
from evalkit.bench.training import time_step
from evalkit.core import streams
from evalkit.core.batches import feed_of
from evalkit.core.contracts import Params, Pretrained
from evalkit.inference.prefill import Prefilled, placed
from evalkit.inference.streaming import stream_tally
from evalkit.kernels import linear_state, rglru, triton
from evalkit.models import Model, build
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.parallel.devices import bytes_of, compile_sooner
from evalkit.record import environment
from evalkit.tasks.induction_heads import InductionHeads
from evalkit.tasks.text.tokenizers import Bytes
from evalkit.training.settings import Training
from evalkit.training.trainer import Trainer
from support import kernel_oracle as oracle

Row = dict[str, Any]
OF_README = ("hydra", "omegaconf", "filelock", "matplotlib", "rich", "scipy")
"""Packages that the README's command needs beside JAX and its own."""
README = ("task=induction_heads", "model=griffin")
TINY = ("task.length=32", "model.width=16", "model.pattern=[recurrent]", "model.mixers.recurrent.width_rnn=16")
TINY += ("train.steps=4", "train.curriculum=[]", "train.batch_size=2", "train.validation_sequences=2")
TINY += ("train.state_passing=null", "train.average=null", "eval.lengths=[64]", "eval.during=[]", "eval.sequences=2")
# Width, width of the recurrence, depth and heads: the README's models, and two rows of the paper's table 2.
SIZES = {"250K": (64, 64, 5, 4), "400M": (1536, 2048, 12, 12), "1B": (2048, 2560, 24, 16), "tiny": (32, 32, 1, 2)}
NAMES = ("Hawk", "Griffin")
# Steps, width and resets: ends within a block, of every kernel's, and no whole block at all.
EXACT = {
    "triton": [(1, 1, "first"), (9, 3, "consecutive"), (300, 200, "last")],
    "mosaic_gpu": [(7, 128, "first"), (129, 128, "last"), (300, 256, "all")],
    "triton_interpret": [(9, 3, "consecutive")],
}


def exact(small: bool) -> Iterator[Row]:
    """The largest error of any output or gradient against float64 NumPy, as `kernel_oracle.error` measures it."""
    yield {"environment": environment.describe("highest")}
    dtypes = ("float32",) if small else ("float32", "bfloat16")
    too_large = []
    on_a_gpu = ("triton", "mosaic_gpu") if _is_hopper() else ("triton",)
    for implementation in ("triton_interpret",) if small else on_a_gpu:
        for (steps, width, kind), dtype in product(EXACT[implementation], dtypes):
            row = {"what": implementation, "steps": steps, "width": width, "resets": kind, "dtype": dtype}
            error = _error(steps, width, oracle.resets(kind, 2, steps), dtype, implementation)
            yield row | {"error": error, "allowed": oracle.TOLERANCE[dtype]}
            too_large += [row] if error > oracle.TOLERANCE[dtype] else []
    assert not too_large, f"not exact: {too_large}"


def _error(steps: int, width: int, reset: np.ndarray, dtype: str, implementation: str) -> float:
    draws = np.random.default_rng(steps)
    x, r, i, dh = (jnp.asarray(draws.normal(size=(2, steps, width)), dtype) for _ in range(4))
    h0, dlast = (jnp.asarray(draws.normal(size=(2, width)), jnp.float32) for _ in range(2))
    rate = jnp.asarray(-draws.uniform(1e-3, 2, size=width), jnp.float32)
    actual = oracle.gradients(rglru, (dh, dlast), x, r, i, rate, h0, reset=reset, implementation=implementation)
    wide = [np.asarray(value, np.float64) for value in (x, r, i, rate, h0)]
    cotangents = [np.asarray(value, np.float64) for value in (dh, dlast)]
    values = oracle.gated(*wide, reset, False)
    expected = (*values, *oracle.gated_gradients(*wide, reset, False, *cotangents))
    return max(oracle.error(one, other) for one, other in zip(actual, expected, strict=True))


def readme(small: bool) -> Iterator[Row]:
    """README's first command with an empty compilation cache, then with what that left: seconds at its lines."""
    missing = [name for name in OF_README if importlib.util.find_spec(name) is None]
    if missing:
        yield {"not_run": f"needs {', '.join(missing)}"}
        return
    with TemporaryDirectory() as folder:
        for cache in ("empty", "filled"):
            words = [*README, *(TINY if small else ()), "log=[]", f"hydra.run.dir={folder}/{cache}"]
            for row in _run(words, f"{folder}/compiled"):
                yield {"cache": cache, **row}


def _run(words: list[str], cache: str) -> Iterator[Row]:
    """Runs evalkit; yields its lines as they come, and at the end what it compiled."""
    began = time.perf_counter()
    programs: dict[str, list[float]] = defaultdict(list)
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "evalkit", *words],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_LOG_COMPILES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if program := compiled_program(line):
                programs[program[0]].append(program[1])
                continue
            said.append(line)
            if line.startswith(("training: ", "evaluation: ", "compilation: ")):
                yield {"s": time.perf_counter() - began, "line": line.strip()}
    table = [{"program": name, "times": len(taken), "s": sum(taken)} for name, taken in programs.items()]
    yield {
        "s": time.perf_counter() - began,
        "compiled": sum(map(len, programs.values())),
        "compiling_s": sum(map(sum, programs.values())),
        "programs": sorted(table, key=lambda row: -row["s"]),
    }
    if process.returncode:
        raise RuntimeError(f"evalkit ended with {process.returncode}:\n{''.join(said[-20:])}")


def compiled_program(line: str) -> tuple[str, float] | None:
    """The name of a program and its seconds, from a line of JAX's log of what it compiles."""
    said = re.search(r"Finished XLA compilation of (\S+) in ([\d.]+) sec", line)
    return (said[1], float(said[2])) if said else None


def seeds(small: bool) -> Iterator[Row]:
    """A step of README's recipe with one seed and with eight, both compiled side by side."""
    model = _model("Griffin", "tiny" if small else "250K", window=128)
    settings = Training(
        steps=3000,
        batch_size=2 if small else 16,
        learning_rate=4e-3,
        schedule="constant",
        state_passing=None if small else 0.0625,
        average=0.999,
    )
    task = InductionHeads(length=16 if small else 256)
    trainers = {count: Trainer(task, model, settings, range(count)) for count in (1, 2 if small else 8)}
    yield {"compile_s": _side_by_side(*(partial(_compile, trainer) for trainer in trainers.values()))}
    alone = None
    for trainer in trainers.values():
        row = time_step(trainer, repeats=2 if small else 5, steps=settings.log_every)
        alone = alone or row["ms_per_step"]
        yield row | {"of_one_seed": row["ms_per_step"] / alone}


def reading(small: bool) -> Iterator[Row]:
    """Tokens a second of held-out sequences, as the evaluation reads them; all lengths of a model share programs."""
    batch, lengths, chunk = (2, (32, 64), 16) if small else (256, (4096, 65536), 256)
    feed = feed_of(InductionHeads(length=lengths[0]))
    examples = {length: feed.held_out(streams.TEST, 0, batch, length) for length in lengths}
    models = {name: _model(name, "tiny" if small else "250K", window=128) for name in NAMES[: 1 if small else 2]}
    read = {name: partial(stream_tally, model, _constant(model)) for name, model in models.items()}
    yield {"compile_s": _side_by_side(*(partial(one, examples[lengths[0]], chunk) for one in read.values()))}
    for name, length in product(models, lengths):
        taken = quartiles(times({"": partial(read[name], examples[length], chunk)}, 3)[""]).median
        row = {"model": name, "batch": batch, "length": length, "chunk": chunk, "s": taken}
        yield row | {"tokens_per_s": batch * length / taken}


def kernels(small: bool) -> Iterator[Row]:
    """The fused recurrence at the size that it is judged by, forward and with its gradient, against a copy."""
    copy = rates(1 if small else 3)["copy"]
    yield {"copy_gb_per_s": copy / 1e9}
    yield from _of_copy((1, 64, 64) if small else (8, 8192, 4096), _variants(small), copy, 3 if small else 7)


def matrix(small: bool) -> Iterator[Row]:
    """Recurrences of a matrix, for which there is no kernel, in chunks of 32 and of 64 tokens.

    Their floor is a copy of what they must read and write: queries, keys, values and outputs, and with gradients those
    again and theirs.
    """
    copy = rates(1 if small else 3)["copy"]
    batch, length, heads, width = (1, 64, 2, 8) if small else (8, 4096, 8, 128)
    shape = (batch, length, heads, width)
    q, k, v = (jax.random.normal(key, shape, "bfloat16") for key in jax.random.split(jax.random.key(0), 3))
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    beta, of_head, of_channel = (
        jnp.full(size, value) for size, value in ((shape[:3], 0.5), (shape[:3], -0.1), (shape, -0.1))
    )
    forms = {
        "linear attention": {},
        "Gated DeltaNet": {"log_decay": of_head, "beta": beta, "write": beta},
        "KDA": {"log_decay": of_channel, "beta": beta, "write": beta},
    }
    for backward in (False, True):
        runs = {
            f"{name}, chunks of {chunk}": compiled(
                lambda *inputs, form=form, chunk=chunk: linear_state(*inputs, **form, chunk=chunk)[0], backward, q, k, v
            )
            for (name, form), chunk in product(forms.items(), (32, 64))
        }
        ready, refused = _ahead(runs)
        for name, reason in refused.items():
            yield {"what": name, "pass": name_of_pass(backward), "not_run": reason}
        moved = (4 if not backward else 11) * q.size * q.dtype.itemsize
        for name, seconds in times(ready, 3 if small else 5, LEAST_S).items():
            taken = quartiles(seconds).median
            row = {"what": name, "shape": shape, "pass": name_of_pass(backward), "ms": taken * 1e3}
            yield row | {"of_copy": moved / taken / copy, "tokens_per_s": batch * length / taken}


def lanes(small: bool) -> Iterator[Row]:
    """Triton's kernel and Mosaic's with fewer lanes (batch × width): from how many on Mosaic's is the faster."""
    copy = rates(1 if small else 3)["copy"]
    ways = ("triton_interpret",) if small else ("triton", *(("mosaic_gpu",) if _is_hopper() else ()))
    functions = {way: partial(rglru, implementation=way) for way in ways}
    for shape in ((1, 64, 64),) if small else ((4, 2048, 2048), (8, 2048, 2048), (4, 8192, 4096)):
        yield from _of_copy(shape, functions, copy, 3 if small else 7)


def _of_copy(
    shape: tuple[int, int, int], functions: Mapping[str, Callable[..., Any]], copy: float, repeats: int
) -> Iterator[Row]:
    """What each function moves at `shape` in bfloat16, forward and with its gradient, as a part of a copy's rate."""
    inputs = [jax.random.normal(key, shape, "bfloat16") for key in jax.random.split(jax.random.key(0), 3)]
    inputs.append(jnp.full(shape[-1:], -0.5))
    contenders = {
        name: Contender("rglru", name, "bfloat16", 3, lambda *inputs, function=function: function(*inputs)[0])
        for name, function in functions.items()
    }
    for backward in (False, True):
        runs = {name: compiled(one.function, backward, *inputs) for name, one in contenders.items()}
        ready, refused = _ahead(runs)
        for name, reason in refused.items():
            yield {"what": name, "pass": name_of_pass(backward), "not_run": reason}
        for name, seconds in times(ready, repeats, LEAST_S).items():
            taken, moved = quartiles(seconds).median, contenders[name].bytes(math.prod(shape), backward)
            row = {"what": name, "shape": shape, "pass": name_of_pass(backward), "ms": taken * 1e3}
            yield row | {"gb_per_s": moved / taken / 1e9, "of_copy": moved / taken / copy}


def _variants(small: bool) -> dict[str, Callable[..., Any]]:
    """The default, Mosaic on Hopper, and Triton in other blocks: more channels a thread, fewer steps ahead, chunks.

    Loads in flight are batch × width × chunks × `ahead` × 6 bytes, and 4.2 TB/s × 0.7 µs want 3 MB. `ahead=8` has 1.6
    in one chunk, so 16 steps ahead, or two chunks, which read the inputs twice.
    """
    blocks = [(128, 16, 4, 1), (128, 8, 4, 1), (64, 16, 1, 1), (128, 8, 4, 2)]
    made = {
        f"channels={channels} ahead={ahead} warps={warps} chunks={chunks}": triton.kernel(
            triton.Blocks(channels, ahead, warps, chunks), interpret=small
        )
        for channels, ahead, warps, chunks in (blocks[-1:] if small else blocks)
    }
    of_hopper = {"mosaic_gpu": "mosaic_gpu"} if _is_hopper() else {}
    ways = {**({} if small else {"default": "auto"}), **of_hopper, **made}
    return {"lax.associative_scan": _gated_by_pairs} | {
        name: partial(rglru, implementation=way) for name, way in ways.items()
    }


def _is_hopper() -> bool:
    return jax.devices()[0].platform == "gpu" and jax.devices()[0].compute_capability == "9.0"


def _gated_by_pairs(x: jax.Array, recurrence: jax.Array, entry: jax.Array, rate: jax.Array) -> Any:
    """The gates as one writes them, `lax.associative_scan`, and JAX's own gradient."""
    log_a = jax.nn.sigmoid(recurrence.astype(jnp.float32)) * rate[None, None]
    root = jnp.sqrt(-jnp.expm1(2 * log_a))
    h, last = plain_associative(root * jax.nn.sigmoid(entry.astype(jnp.float32)) * x, jnp.exp(log_a))
    return h.astype(x.dtype), last


def _ahead(runs: Mapping[str, partial[Any]]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The calls compiled by as many threads as there are cores, and why the others could not be."""
    with ThreadPoolExecutor() as pool:
        pending = {name: pool.submit(lambda run=run: run.func.lower(*run.args).compile()) for name, run in runs.items()}
    refused = {name: repr(one.exception())[:200] for name, one in pending.items() if one.exception()}
    ready = {name: partial(one.result(), *runs[name].args) for name, one in pending.items() if name not in refused}
    return ready, refused


def steps(small: bool) -> Iterator[Row]:
    """A training step of 400M parameters in bfloat16 on 4 × 2,048 tokens, every position scored."""
    rate = rates(1 if small else 3, "bfloat16")["product"]
    yield {"product_bfloat16_gflops_per_s": rate / 1e9}
    batch, length = (2, 32) if small else (4, 2048)
    task = InductionHeads(vocab_size=256, length=length, loss="all")
    settings = Training(steps=1000, batch_size=batch, learning_rate=1e-3)
    size = "tiny" if small else "400M"
    models = {name: _model(name, size, 1024, task.vocab_size, "bfloat16") for name in NAMES[: 1 if small else 2]}
    trainers = {name: Trainer(task, model, settings, [0]) for name, model in models.items()}
    yield {"compile_s": _side_by_side(*(partial(_compile, trainer) for trainer in trainers.values()))}
    for name, trainer in trainers.items():
        row = {"model": f"{name} {size}", **time_step(trainer, repeats=3, steps=2 if small else 4)}
        yield row | {"of_product": row["product_gflops_per_s"] * 1e9 / rate, "memory": _memory()}


def decoding(small: bool) -> Iterator[Row]:
    """Decoding at 1B parameters after an empty prefill, against the time to copy what a token must read."""
    copy = rates(1 if small else 3)["copy"]
    size, batch, vocab_size = ("tiny", 2, 64) if small else ("1B", 16, 32000)
    tokens = [2, 4] if small else [32, 288]
    models = {name: _model(name, size, 1024, vocab_size, "bfloat16") for name in NAMES[: 1 if small else 2]}
    ready: dict[str, tuple[Pretrained, Prefilled, Compiled]] = {}

    def prepare(name: str) -> None:
        model = models[name]
        pretrained = placed(Pretrained(model, _constant(model), Bytes(), "", "", None), batch)
        read = decode.read_prompts(pretrained, batch, 0, tokens[-1], vocab_size)
        ready[name] = pretrained, read, decode.program(pretrained, read)

    yield {"compile_s": _side_by_side(*(partial(prepare, name) for name in models))}
    for name, (pretrained, read, run) in ready.items():
        marks = decode.seconds(run, pretrained.params, read, tokens, lambda count, taken: None)
        limits, weights = decode.Limits(copy, math.inf, math.inf), bytes_of(pretrained.params)
        floors = decode.predicted(models[name], weights, batch, 0, tokens, limits)
        count, taken = tokens[1] - tokens[0], marks[1] - marks[0]
        least = floors[1].equation_5 - floors[0].equation_5
        row = {"model": f"{name} {size}", "batch": batch, "weight_bytes": weights, "ms_per_token": taken / count * 1e3}
        yield row | {"tokens_per_s": batch * count / taken, "of_copy": least / taken, "memory": _memory()}


def _model(name: str, size: str, window: int, vocab_size: int = 16, dtype: str = "float32") -> Model:
    """Hawk or Griffin at one of `SIZES`."""
    width, width_rnn, depth, heads = SIZES[size]
    pattern = ["r"] if name == "Hawk" else list("rrarr") if size == "250K" else list("rra")
    head_dim = 128 if width > 1000 else width // heads
    mixers = {
        "r": partial(RecurrentBlock, width_rnn=width_rnn),
        "a": partial(MQA, heads=heads, head_dim=head_dim, window=window),
    }
    used = {letter: mixers[letter] for letter in pattern}
    return build(vocab_size=vocab_size, width=width, pattern=pattern, depth=depth, mixers=used, dtype=dtype)


def _constant(model: Model) -> Params:
    """Parameters whose values do not matter: drawing them is a program that takes long to compile."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), shapes)


def _compile(trainer: Trainer) -> None:
    trainer.program(trainer.training.stages(trainer.task.length)[-1])


def _side_by_side(*work: Callable[[], Any]) -> float:
    """Seconds of what threads do at the same time."""
    began = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        jax.block_until_ready(list(pool.map(lambda one: one(), work)))
    return time.perf_counter() - began


def _memory() -> Mapping[str, int]:
    """What the device says of its memory; nothing on a CPU."""
    return jax.devices()[0].memory_stats() or {}


PARTS = {part.__name__: part for part in (exact, readme, seeds, reading, kernels, steps, decoding, matrix, lanes)}


def main() -> int:
    """Prints the rows of one part, and if it fails its traceback as a last one; all else goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    out = sys.stdout
    compile_sooner()
    jax.config.update("jax_default_matmul_precision", "highest")  # in threads, too, where programs are compiled
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for row in PARTS[arguments.part](arguments.small):
                print(json.dumps(row), file=out, flush=True)
    except Exception:
        print(json.dumps({"traceback": traceback.format_exc()}), file=out, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
