"""The diagonal linear recurrence `h_t = a_t h_{t-1} + x_t` (De et al. 2024, eq. 4), with one custom gradient.

Shapes: b batch, t time, d channels. Products and sums are float32 whatever the dtype of the inputs, or float64 for
float64 inputs. `h` has the dtype of `x`, the last state that of the sums.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from evalkit.kernels.dispatch import Implementation, check, check_shapes, dispatch
from evalkit.kernels.passes import Kernel, Linear, LinearGradient, Reads
from evalkit.kernels.xla import Scan, adjoint


def linear_scan(
    x: Float[Array, "b t d"],
    a: Float[Array, "b t d"],
    h0: Float[Array, "b d"] | None = None,
    *,
    reset: Bool[Array, "b t"] | None = None,
    reverse: bool = False,
    implementation: Implementation = "auto",
) -> tuple[Float[Array, "b t d"], Float[Array, "b d"]]:
    """Returns every state `h [b, t, d]` and the last one `[b, d]` of `h_t = a_t h_{t-1} + x_t`.

    `h0` is the state before the first step (zero if None). Where `reset` is True the state before that step counts as
    zero. With `reverse` time runs from the last step to the first, and the last state is the one at step 0.
    `implementation` is one of `kernels.dispatch.IMPLEMENTATIONS`, or a kernel with blocks of its own
    (`kernels.triton.kernel`); the default follows the platform. Raises ValueError for other shapes, as nothing is
    broadcast, an empty time axis, an unknown implementation, or one that does not take these shapes or this dtype.

    >>> h, last = linear_scan(jnp.ones((1, 3, 1)), jnp.full((1, 3, 1), 0.5))
    >>> h.ravel().tolist(), last.ravel().tolist()
    ([1.0, 1.5, 1.75], [1.75])
    """
    check(implementation, x)
    rows, state = x.shape[:2], (x.shape[0], x.shape[2])
    check_shapes({"a": (a, x.shape), "h0": (h0, state), "reset": (reset, rows)}, "x", x)
    a, h0 = started(x, a, h0, reset)
    return _scan(x, a, h0, reverse, implementation)


def started(x: Array, a: Array, h0: Array | None, reset: Array | None) -> tuple[Array, Array]:
    """Returns the decays, zero at resets, and the state before the first step in the dtype of the sums."""
    # A sum of a thousand steps in bfloat16 would lose every small one.
    accumulate = jnp.promote_types(x.dtype, jnp.float32)
    if reset is not None:
        a = jnp.where(reset[..., None], jnp.zeros((), a.dtype), a)
    return a, jnp.zeros((x.shape[0], x.shape[2]), accumulate) if h0 is None else h0.astype(accumulate)


def _scan_primal(x: Array, a: Array, h0: Array, reverse: bool, implementation: Implementation) -> tuple[Array, Array]:
    by_scan, by_kernel = partial(_states_by_scan, reverse=reverse), partial(_states_by_kernel, reverse=reverse)
    return dispatch(implementation, by_scan, by_kernel, x, a, h0, plain=x)


def _states_by_scan(scan: Scan, x: Array, a: Array, h0: Array, *, reverse: bool) -> tuple[Array, Array]:
    (h,) = scan((x.astype(h0.dtype),), (a.astype(h0.dtype),), (h0,), reverse=reverse)
    return h.astype(x.dtype), h[:, 0 if reverse else -1]


def _states_by_kernel(kernel: Kernel, x: Array, a: Array, h0: Array, *, reverse: bool) -> tuple[Array, Array]:
    walked = kernel.walk(Linear(), Reads((a, x), (h0,)), reverse=reverse, dtypes=(x.dtype,))
    return walked.outputs[0], walked.carry[0]


_scan = jax.custom_vjp(_scan_primal, nondiff_argnums=(3, 4))


def _scan_forward(x: Array, a: Array, h0: Array, reverse: bool, implementation: Implementation):
    h, last = _scan_primal(x, a, h0, reverse, implementation)
    return (h, last), (a, h0, h)


def _scan_backward(
    reverse: bool, implementation: Implementation, kept: tuple[Array, ...], cotangents: tuple[Array, ...]
):
    by_scan, by_kernel = partial(_gradients_by_scan, reverse=reverse), partial(_gradients_by_kernel, reverse=reverse)
    return dispatch(implementation, by_scan, by_kernel, *kept, *cotangents, plain=kept[0])


def _gradients_by_scan(
    scan: Scan, a: Array, h0: Array, h: Array, dh: Array, dlast: Array, *, reverse: bool
) -> tuple[Array, ...]:
    wide = ((value.astype(h0.dtype),) for value in (a, h, h0, dh, dlast))
    (dx,), (da,), (dh0,) = adjoint(scan, *wide, reverse=reverse)
    return dx.astype(h.dtype), da.astype(a.dtype), dh0


def _gradients_by_kernel(
    kernel: Kernel, a: Array, h0: Array, h: Array, dh: Array, dlast: Array, *, reverse: bool
) -> tuple[Array, ...]:
    reads = Reads((a, dh), (dlast,), lagged=((h, h0),))
    walked = kernel.walk(LinearGradient(), reads, reverse=not reverse, dtypes=(h.dtype, a.dtype))
    dx, da = walked.outputs
    return dx, da, walked.carry[0]


_scan.defvjp(_scan_forward, _scan_backward)
