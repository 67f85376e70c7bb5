"""Optimisers with warm-up, a schedule and clipping, and the average of parameters: all of them Optax's parts."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from evalkit.core.errors import first_line, place_of

SCHEDULES = (COSINE := "cosine", "constant", "wsd")
OPTIMIZERS = ("adamw", "amsgrad", "clipped_adamw")
Factory = Callable[..., optax.GradientTransformation]
"""An optimiser of Optax, or of one's own, which is called with `learning_rate=`, a schedule."""
MASKS = ("mask", "weight_decay_mask")
"""The arguments by which factories of Optax take the tree that is True where weight decay applies."""
WSD_DECAY_SHARE = 0.2
"""The share of steps over which `wsd` falls."""
MAX_RMS = 1.0
"""Of gradients that were divided by the root of their mean square: 1 is what is usual, and Adafactor's threshold."""


def schedule(kind: str, rate: float, warmup_steps: int, steps: int, final_fraction: float) -> optax.Schedule:
    """Returns a linear warm-up to `rate`, and what `kind` says after it.

    `cosine` falls to `final_fraction * rate` at `steps`, `constant` stays, and `wsd` (warm up, stay, decay) stays and
    falls linearly to 0 over the last fifth of the steps.
    """
    warmup = min(warmup_steps, steps - 1)
    rise = optax.linear_schedule(0.0, rate, warmup) if warmup else optax.constant_schedule(rate)
    if kind == COSINE:
        return optax.join_schedules(
            [rise, optax.cosine_decay_schedule(rate, steps - warmup, alpha=final_fraction)], [warmup]
        )
    stay = optax.constant_schedule(rate)
    if kind == "constant":
        return optax.join_schedules([rise, stay], [warmup])
    falling = max(1, round(WSD_DECAY_SHARE * steps))
    last = max(warmup, steps - falling)
    return optax.join_schedules([rise, stay, optax.linear_schedule(rate, 0.0, steps - last)], [warmup, last])


def optimizer(
    kind: str,
    rate: optax.Schedule,
    *,
    b1: float,
    b2: float,
    weight_decay: float,
    clip: float,
    mask: Any,
    by_array: Callable[[optax.GradientTransformation], optax.GradientTransformation],
) -> optax.GradientTransformation:
    """Returns global-norm clipping, then the optimiser `kind`, which decays only where the tree `mask` is True.

    `adamw` is Optax's own (sec. 3.1 of De et al. 2024). `amsgrad` never forgets the largest mean square of a gradient
    (Reddi et al. 2018). `clipped_adamw` clips updates as Adafactor does (Shazeer & Stern 2018, sec. 6): gradients over
    the root of their mean square are scaled down to a root mean square of 1 over an array, then averaged by `b1`.
    Parameters come as vectors of many arrays; `by_array` gives a transformation each array by itself.
    """
    if kind == "clipped_adamw":
        normalised = optax.scale_by_rms(b2, eps_in_sqrt=False, bias_correction=True)
        direction = [normalised, by_array(optax.clip_by_block_rms(MAX_RMS)), optax.ema(b1)]
    else:
        direction = [(optax.scale_by_amsgrad if kind == "amsgrad" else optax.scale_by_adam)(b1=b1, b2=b2)]
    direction = [*direction, optax.add_decayed_weights(weight_decay, mask)]
    # As `optax.adamw` nests them, so that checkpoints of every version have the same state.
    return optax.chain(optax.clip_by_global_norm(clip), optax.chain(*direction, optax.scale_by_learning_rate(rate)))


def from_factory(
    factory: Factory, rate: optax.Schedule, weight_decay: float, clip: float, mask: Any
) -> optax.GradientTransformation:
    """Returns global-norm clipping, then the optimiser that `factory` makes, then weight decay as AdamW's.

    Its own state is the second part of the state. A factory that takes a mask of weight decay gets ours.
    """
    masks = dict.fromkeys(set(MASKS) & set(signature(factory).parameters), mask)
    own = factory(learning_rate=rate, **masks)
    if not isinstance(own, optax.GradientTransformation):
        raise TypeError(f"it makes a {type(own).__name__}, no optax.GradientTransformation")
    decay = [optax.add_decayed_weights(lambda step: -weight_decay * rate(step), mask)] if weight_decay else []
    return optax.chain(optax.clip_by_global_norm(clip), own, *decay)


def average_of_optimizer(make: Callable[..., Any], state: Any, params: Any) -> Any:
    """Returns the average that an optimiser `from_factory` keeps: `make` takes its `state` and the `params`."""
    return make(state=state[1], params=params)


def refuse_unfit(
    make: Callable[[], optax.GradientTransformation], params: Any, average: Callable[..., Any] | float | None
) -> None:
    """Raises ValueError for an optimiser that cannot be made, or takes no step; nothing is computed."""
    try:
        made = make()
        before: Any = jax.eval_shape(made.init, params)
        updates, after = jax.eval_shape(made.update, params, before, params)
        kept = jax.eval_shape(partial(average_of_optimizer, average), after, params) if callable(average) else params
    except Exception as error:  # whatever a factory of the user's may raise
        raise ValueError(f"train.optimizer takes no step: {first_line(error)}{place_of(error)}") from error
    for name, one, other in (("updates", updates, params), ("state", after, before), ("average", kept, params)):
        if _kinds(one) != _kinds(other):
            raise ValueError(f"train.optimizer: a step changes the shapes or dtypes of its {name}; keep them")
    if average is None and isinstance(before[1], optax.contrib.ScheduleFreeState):
        raise ValueError(
            "train.optimizer keeps an average of its own, which is to be evaluated; give 'train.average={_target_: "
            "optax.contrib.schedule_free_eval_params, _partial_: true}', or a decay such as train.average=0.999"
        )


def _kinds(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def ema_update(average: Any, params: Any, decay: float, step: Array) -> Any:
    """Returns the exponential moving average with `params`, those after step `step` (from 0), taken in.

    It has no bias towards the first parameters: the parameters after each step have weights that fall by `decay` a step
    and sum to 1. A step that is skipped (`train.skip_nonfinite`) counts, with the parameters before it.
    """
    log_decay = jnp.log(jnp.float32(decay))
    # expm1, because 1 − decay^n cancels near 1.
    share = jnp.expm1(log_decay) / jnp.expm1(log_decay * (step + 1))
    return optax.incremental_update(params, average, share)
