"""Reads parameters from another project's tensors, one at a time, and writes them back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax import nnx

from evalkit.models.formats.described import shown
from evalkit.models.model import Model, Params

Path = tuple[str | int, ...]
Shape = tuple[int, ...]
MATRICES = ("kernel", "table")


class Layout(NamedTuple):
    """How another project's tensor becomes a parameter here, and back (up to its shape)."""

    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


SAME = Layout(lambda x: x, lambda x: x)
TRANSPOSED = Layout(lambda x: x.T, lambda x: x.T)
NEGATED = Layout(lambda x: -x, lambda x: -x)
FLAT = Layout(lambda x: x.reshape(-1), lambda x: x)
ONE_PLUS = Layout(lambda x: 1 + x, lambda x: x - 1)
"""For a norm whose stored scale is the scale less 1. It is a vector, so the sum is taken in float32."""


class Tensor(NamedTuple):
    """The parameter at `path`, and the other project's tensor `name` that it comes from."""

    path: Path
    name: str
    shape: Shape
    layout: Layout


class Plan(NamedTuple):
    """A model, and the tensor that each of its parameters comes from."""

    model: Model
    tensors: list[Tensor]


@runtime_checkable
class Tensors(Protocol):
    """Tensors in files; the shape of each is known without reading it."""

    @property
    def shapes(self) -> dict[str, Shape]:
        """Every tensor's shape by its name."""
        ...

    def read(self, name: str) -> np.ndarray:
        """One tensor."""
        ...


def require(config: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raises ValueError if a configuration differs from `fixed` in a key that it has."""
    for key, value in fixed.items():
        if config.get(key, value) != value:
            raise ValueError(f"config.json has {key}={shown(repr(config[key]))}; only {value!r} is served")


def read(plan: Plan, tensors: Tensors, dtype: str) -> Params:
    """Returns the model's parameters on the default device, matrices in `dtype`, vectors in float32."""
    # The largest tensor is read first. So memory never holds more than the model and a smaller tensor, or the largest
    # tensor twice.
    leaves = {}
    for tensor in sorted(plan.tensors, key=lambda tensor: -np.prod(tensor.shape)):
        leaves[tensor.path] = _leaf(tensor, tensors.read(tensor.name), dtype)
    return nnx.traversals.unflatten_mapping(leaves)


def check(wanted: Sequence[Tensor], shapes: dict[str, Shape], unused: Sequence[str]) -> None:
    """Raises ValueError unless `shapes` are exactly those of the `wanted` tensors.

    Tensors whose names end in one of `unused` may be there too.
    """
    for tensor in wanted:
        if tensor.name not in shapes:
            raise ValueError(f"the tensor {tensor.name} is missing; download the checkpoint again")
        if shapes[tensor.name] != tensor.shape:
            raise ValueError(
                f"the tensor {tensor.name} has shape {shapes[tensor.name]}, and by the configuration "
                f"{tensor.shape}; take both from one checkpoint"
            )
    unknown = set(shapes) - {tensor.name for tensor in wanted}
    unknown = sorted(name for name in unknown if not name.endswith(tuple(unused)))
    if unknown:
        raise ValueError(
            f"the tensor {shown(unknown[0])} ({len(unknown)} in all) has no place in this architecture; "
            "give a checkpoint as it was released"
        )


def written(plan: Plan, params: Params) -> Iterator[Callable[[], np.ndarray]]:
    """Yields, for each tensor of the plan in order, a function that makes it from `params` in float32."""
    leaves = nnx.traversals.flatten_mapping(params)

    def make(tensor: Tensor) -> np.ndarray:
        return tensor.layout.write(np.asarray(leaves[tensor.path], np.float32)).reshape(tensor.shape)

    return (partial(make, tensor) for tensor in plan.tensors)


def _leaf(tensor: Tensor, values: np.ndarray, dtype: str) -> jax.Array:
    if tensor.path[-1] not in MATRICES:
        dtype, values = "float32", values.astype(np.float32)
    leaf = jax.device_put(np.ascontiguousarray(tensor.layout.read(values))).astype(dtype)
    return leaf.block_until_ready()  # so that `values` is freed before the next tensor is read
