"""`bench state`: the matrix-state recurrence step by step and in chunks, each form of it, at lengths that double."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from evalkit.bench.stopwatch import Race, compiled, doubling, name_of_pass
from evalkit.kernels import linear_state
from evalkit.numerics import random_key

# The decay (none, a head's, a key channel's), and whether keys are erased.
FORMS = {
    "linear_attention": (None, False),
    "mamba2": ("head", False),
    "gla": ("channel", False),
    "deltanet": (None, True),
    "gated_deltanet": ("head", True),
    "kda": ("channel", True),
}
LOOP = "sequential"
CONTENDERS: dict[str, dict[str, Any]] = {
    LOOP: {"implementation": "sequential"},
    **{f"chunks of {size}": {"implementation": "chunked", "chunk": size} for size in (16, 32, 64)},
}


def measure(
    batch: int, heads: int, keys: int, values: int, shortest: int, longest: int, repeats: int, patience: int
) -> dict[str, Any]:
    """Milliseconds forward and with the gradient of all inputs, and the speed as a multiple of the loop's.

    A contender whose call takes more than `patience` seconds is not run at longer lengths, and its row says so.
    """
    race = Race(repeats, patience)
    rows = [
        row
        for length in doubling(shortest, longest)
        for form in FORMS
        for backward in (False, True)
        for row in _rows(race, form, (batch, length, heads, keys, values), backward)
    ]
    return {"batch": batch, "heads": heads, "keys": keys, "values": values, "rows": rows}


def _rows(race: Race, form: str, sizes: tuple[int, int, int, int, int], backward: bool) -> Iterator[dict[str, Any]]:
    prefix = f"{form} {name_of_pass(backward)} "
    makers = {prefix + name: partial(call, form, sizes, backward, how) for name, how in CONTENDERS.items()}
    results = race.run(makers, sizes[1])
    loop = results[prefix + LOOP]
    for name, taken in zip(CONTENDERS, results.values(), strict=True):
        row = {"operation": form, "implementation": name, "pass": name_of_pass(backward), "length": sizes[1]}
        if isinstance(taken, str):
            yield row | {"not_run": taken}
        else:
            yield row | {"ms": taken * 1e3} | ({"of_loop": loop / taken} if isinstance(loop, float) else {})


def call(
    form: str, sizes: tuple[int, int, int, int, int], backward: bool, settings: dict[str, Any]
) -> Callable[[], Any]:
    """The operation on random inputs, its keys unit vectors, with the gradient of all of them if `backward`."""
    batch, length, heads, keys, values = sizes
    draws = [jax.random.normal(key, (batch, length, heads, keys)) for key in jax.random.split(random_key(0), 3)]
    q, k = draws[0], draws[1] / jnp.linalg.norm(draws[1], axis=-1, keepdims=True)
    v = jax.random.normal(random_key(1), (batch, length, heads, values))
    decay, erases = FORMS[form]
    gates: dict[str, Array] = {}
    if decay:
        logits = draws[2] if decay == "channel" else draws[2][..., 0]
        gates["log_decay"] = jax.nn.log_sigmoid(logits + 3)
    if erases:
        gates["beta"] = gates["write"] = jax.nn.sigmoid(draws[2][..., -1])
    return compiled(lambda q, k, v, gates: linear_state(q, k, v, **gates, **settings)[0], backward, q, k, v, gates)
