"""`bench cost`: what models keep and compute a token, and which machine's limit that meets, by arithmetic alone.

No array is allocated and nothing is timed: models are built of shapes. De et al. 2024, table 2 and 3, app. D.1, F.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import yaml

from evalkit.configuration.models import Sized
from evalkit.configuration.positions import refuse_beyond_positions
from evalkit.configuration.schema import completed, settings_of
from evalkit.core.contracts import LanguageModel
from evalkit.core.errors import UserError
from evalkit.numerics import random_key
from evalkit.parallel.layouts.mesh import Sizes, sizes_of
from evalkit.training import memory
from evalkit.training.settings import GATHERS

GB = 10**9


class Machine(NamedTuple):
    """What a machine can do: bytes of memory, bytes/s to and from it, and FLOP/s of large products."""

    memory: float
    bandwidth: float
    flops: float


class Price(NamedTuple):
    """What one model takes: bytes of its weights, bytes of one row's cache, and FLOPs of one more token of a row."""

    weights: int
    cache: int
    flops: int

    def seconds_of_memory(self, batch: int, machine: Machine) -> float:
        """Equation 5: a token of every row reads all weights once, and the cache of each row."""
        return (self.weights + batch * self.cache) / machine.bandwidth

    def seconds_of_compute(self, batch: int, machine: Machine) -> float:
        """The time of the operations of a token of every row."""
        return batch * self.flops / machine.flops

    def batch_of_equal_reads(self) -> int | None:
        """The least batch whose caches are at least as large as the weights; None for a model without a cache."""
        return ceil(self.weights / self.cache) if self.cache else None

    def batch_bound_by_compute(self, machine: Machine) -> int | None:
        """The least batch whose operations take as long as its reads; None where each further row adds more reads."""
        gained = self.flops / machine.flops - self.cache / machine.bandwidth
        return ceil(self.weights / machine.bandwidth / gained) if gained > 0 else None

    def largest_batch(self, machine: Machine) -> int | None:
        """How many rows the machine's memory has room for beside the weights; None for a model without a cache."""
        return max(0, int((machine.memory - self.weights) // self.cache)) if self.cache else None


def measure(
    models: Sequence[Sized],
    progress: Callable[[str], None],
    *,
    length: int,
    batch: int,
    vocab_size: int,
    bytes: int,
    memory_gb: float,
    bandwidth_gb_per_s: float,
    tflops: float,
    mesh: str,
    gather: str,
) -> dict[str, Any]:
    """One row per model, after `length` tokens, and one more with multi-head attention for a model with multi-query.

    `bytes` is the size of a weight and of a number of the cache. `progress` is called with each model's name and
    settings. With a `mesh`, a row also has what each of its devices keeps in training. Raises UserError for a mesh that
    does not divide a model.
    """
    refuse_beyond_positions("length", length)
    sizes = _sizes(mesh, gather)
    machine = Machine(memory_gb * GB, bandwidth_gb_per_s * GB, tflops * 1e12)
    built = [sized.built(vocab_size) for sized in models]
    on_a_device = [_on_a_device(model, sizes, gather) for model in built]  # first, as it may refuse
    rows = []
    for sized, model, kept in zip(models, built, on_a_device, strict=True):
        progress(f"{sized.name} {sized.words}")
        first, *others = _rows(sized, model, machine, length, batch, vocab_size, bytes)
        rows += [first | kept, *others]
    shown = {"length": length, "batch": batch, "vocab_size": vocab_size, "bytes_of_a_number": bytes}
    limits = {"memory_gb": memory_gb, "bandwidth_gb_per_s": bandwidth_gb_per_s, "tflops": tflops}
    return {**shown, **limits, "machine_flops_per_byte": machine.flops / machine.bandwidth, "rows": rows}


def _sizes(mesh: str, gather: str) -> Sizes | None:
    """The sizes of a mesh from its text; raises UserError for an invalid mesh or `gather`."""
    if gather not in GATHERS:
        raise UserError(f"gather={gather}; allowed: {', '.join(GATHERS)}")
    try:
        return sizes_of(yaml.safe_load(mesh))
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise UserError(
            f"mesh={mesh}; allowed: auto, or devices of both axes, such as 'mesh={{data: 4, model: 2}}'"
        ) from error


def _on_a_device(model: LanguageModel, sizes: Sizes | None, gather: str) -> dict[str, Any]:
    """What a device of a mesh keeps in training; nothing without a mesh."""
    kept = {} if sizes is None else memory.of_model(model, sizes, gather)._asdict()
    return {f"{name}_on_a_device_bytes": size for name, size in kept.items() if size}


def _rows(
    sized: Sized, model: LanguageModel, machine: Machine, length: int, batch: int, vocab_size: int, size: int
) -> list[dict[str, Any]]:
    parameters = count(model)
    price = price_of(model, size * parameters, length, size)
    embedding = vocab_size * sized.node["width"] if "width" in sized.node else 0

    def row(node: Mapping[str, Any], parameters: int, price: Price, **attention: str) -> dict[str, Any]:
        return {
            "model": sized.name,
            "settings": sized.words,
            **attention,
            "parameters": parameters,
            "without_embedding": parameters - embedding,
            "weight_bytes": price.weights,
            "cache_bytes": price.cache,
            "flops_per_token": price.flops,
            "memory_ms": price.seconds_of_memory(batch, machine) * 1e3,
            "compute_ms": price.seconds_of_compute(batch, machine) * 1e3,
            "caches_equal_weights_at": price.batch_of_equal_reads(),
            "compute_bound_at": price.batch_bound_by_compute(machine),
            "largest_batch": price.largest_batch(machine),
            **_of_layers(node, machine, batch, 2 / size),
        }

    allocated = {"allocated_bytes": model.cache_bytes(1, length)}
    multi = multi_head(sized.node)
    if multi is None:
        return [row(sized.node, parameters, price) | allocated]
    other = Sized(sized.name, sized.words, multi).built(vocab_size)
    more = count(other) - parameters
    # Each further number of the keys' and values' maps is one multiply and one add. Turning the further keys by RoPE
    # is left out: 3 operations a channel.
    wide = price_of(other, size * (parameters + more), length, size)._replace(flops=price.flops + 2 * more)
    multi_query = row(sized.node, parameters, price, attention="multi-query") | allocated
    return [multi_query, row(multi, parameters + more, wide, attention="multi-head")]


def count(model: LanguageModel) -> int:
    """How many parameters it has."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, random_key(0))))


def price_of(model: LanguageModel, weights: int, length: int, size: int) -> Price:
    """What the last of `length` tokens takes, with `weights` bytes of parameters and `size` bytes a number of state.

    The numbers of the state are the floating-point ones of the cache: F.3's `2·T·d_head` a layer of global attention,
    `2·min(T, T_ws)·d_head` of local, and `D_rnn + 3·D_rnn` of a recurrent block. Positions are no part of it.
    """
    cache = jax.tree.leaves(jax.eval_shape(lambda: model.init_cache(1, length)))
    state = sum(leaf.size for leaf in cache if jnp.issubdtype(leaf.dtype, jnp.floating))
    before = model.flops(length - 1) if length > 1 else 0
    return Price(weights, size * state, model.flops(length) - before)


def multi_head(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same model with keys and values for every head; None where nothing changes.

    One head as wide as all of them together has the keys, the values and the maps of multi-head attention.
    """
    mixers = dict(node.get("mixers", {}))
    for name, mixer in mixers.items():
        if is_attention(mixer):
            whole = completed(mixer)
            mixers[name] = {**whole, "heads": 1, "head_dim": whole["heads"] * whole["head_dim"]}
    return None if mixers == node.get("mixers", {}) else {**node, "mixers": mixers}


def is_attention(mixer: Mapping[str, Any]) -> bool:
    """Whether a mixer has query heads over a window of keys and values that they share."""
    return {"heads", "head_dim", "window"} <= set(settings_of(mixer, "model.mixers"))


def _of_layers(node: Mapping[str, Any], machine: Machine, batch: int, per_head: float) -> dict[str, Any]:
    """F.1 to F.3 for one layer: the batch from which a map of D × D is bound by compute, and attention's FLOPs a byte.

    A product of `D × D` with `D × N` has `D·N / (D + N)` FLOPs a byte, of 2 bytes a number. One query head does
    `per_head` FLOPs for each byte of keys and values, four for each channel of both; all heads of MQA read the same.
    A window is small while its keys and values, `2·T_ws·d_head` a row, are fewer than about the `2·D²` of the maps.
    """
    width, ratio = node.get("width"), machine.flops / machine.bandwidth
    if width is None:
        return {}
    columns: dict[str, Any] = {"map_compute_bound_at": ceil(ratio * width / (width - ratio)) if width > ratio else None}
    for mixer in map(completed, node.get("mixers", {}).values()):
        if is_attention(mixer):
            columns["attention_flops_per_byte"] = per_head * mixer["heads"]
            if mixer.get("window") is not None:
                columns["window_small_below"] = width**2 // (batch * mixer["head_dim"])
    return columns
