"""What `linear_state` is compared with: its recurrence and its gradients in float64 NumPy, step after step."""

from typing import Any, NamedTuple

import numpy as np


class Arguments(NamedTuple):
    """The arrays of a call, in its order; `log_decay` is a head's, a key channel's, or None."""

    q: Any
    k: Any
    v: Any
    h0: Any
    log_decay: Any = None
    beta: Any = None
    write: Any = None


class Walk(NamedTuple):
    """What a walk through time meets: each state before decay, after it, and at the end of its step."""

    o: np.ndarray
    before: list[np.ndarray]
    decayed: list[np.ndarray]
    after: list[np.ndarray]


def wide(given):
    """Float64, with zeros and ones for what is left out; the decay itself is `[b, t, h, k]`."""
    exact = [None if one is None else np.asarray(one, np.float64) for one in given]
    q, k, v, h0, log_decay, beta, write = exact
    decay = np.ones_like(k) if log_decay is None else np.exp(log_decay.reshape(*q.shape[:3], -1)) * np.ones_like(k)
    beta = np.zeros(q.shape[:3]) if beta is None else beta
    return q, k, v, h0, decay, beta, np.ones(q.shape[:3]) if write is None else write


def walk(given, reset) -> Walk:
    q, k, v, h, decay, beta, write = wide(given)
    found = Walk(np.zeros_like(v), [], [], [])
    for t in range(q.shape[1]):
        h = np.where(reset[:, t, None, None, None], 0, h)
        found.before.append(h)
        h = decay[:, t, :, :, None] * h
        found.decayed.append(h)
        key = k[:, t, :, :, None]
        h = h - beta[:, t, :, None, None] * key * (key * h).sum(-2, keepdims=True)
        h = h + write[:, t, :, None, None] * key * v[:, t, :, None, :]
        found.after.append(h)
        found.o[:, t] = (q[:, t, :, :, None] * h).sum(-2)
    return found


def values(given, reset):
    """`o [b, t, h, v]` and the last state `[b, h, k, v]`, by the definition."""
    found = walk(given, reset)
    return found.o, found.after[-1]


def gradients(given, reset, do, dlast):
    """The gradients of all `Arguments`, None for what is left out, by the adjoint recurrence."""
    q, k, v, _, decay, beta, write = wide(given)
    found = walk(given, reset)
    dq, dk, dv, dlog, dbeta, dwrite = (np.zeros_like(one) for one in (q, k, v, decay, beta, write))
    g = np.asarray(dlast, np.float64)
    for t in reversed(range(q.shape[1])):
        key, value, out = k[:, t, :, :, None], v[:, t, :, None, :], do[:, t, :, None, :]
        b, w, h = beta[:, t, :, None, None], write[:, t, :, None, None], found.decayed[t]
        g = g + q[:, t, :, :, None] * out
        dq[:, t] = (found.after[t] * out).sum(-1)
        read, along = (key * h).sum(-2, keepdims=True), (key * g).sum(-2, keepdims=True)
        dk[:, t] = (g * (w * value - b * read)).sum(-1) - (b * h * along).sum(-1)
        dv[:, t], dwrite[:, t] = (w * along)[..., 0, :], (value * along).sum((-2, -1))
        dbeta[:, t] = -(read * along).sum((-2, -1))
        g = g - b * key * along
        dlog[:, t] = decay[:, t] * (g * found.before[t]).sum(-1)
        g = np.where(reset[:, t, None, None, None], 0, decay[:, t, :, :, None] * g)
    if given.log_decay is not None and given.log_decay.ndim == 3:
        dlog = dlog.sum(-1)
    every = Arguments(dq, dk, dv, g, dlog, dbeta, dwrite)
    return [None if one is None else gradient for one, gradient in zip(given, every, strict=True)]
