"""Counts the operations of a program by reading its jaxpr."""

from collections.abc import Iterator
from math import prod
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def product_flops(closed: ClosedJaxpr) -> int:
    """Floating-point operations of all matrix products in it, 2 a multiply-add; a `scan` counts each of its steps, a
    loop of unknown length one, a branch its dearest arm. Elementwise work is not counted."""
    return _flops(closed.jaxpr)


def _flops(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _product(equation)
            continue
        inner = [_flops(sub) for sub in _inner(equation.params)]
        if equation.primitive.name == "scan":
            total += equation.params["length"] * sum(inner)
        elif equation.primitive.name == "cond":
            total += max(inner, default=0)
        else:
            total += sum(inner)
    return total


def _product(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * prod(equation.outvars[0].aval.shape) * prod(left[axis] for axis in contracted)


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The jaxprs that an equation calls; the rules of a custom derivative are functions and are not among them."""
    for value in jax.tree.leaves(list(params.values()), is_leaf=lambda x: isinstance(x, Jaxpr | ClosedJaxpr)):
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
