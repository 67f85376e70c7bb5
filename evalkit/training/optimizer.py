"""AdamW with warm-up, a schedule and clipping."""

from typing import Any

import optax

SCHEDULES = ("cosine", "constant")


def schedule(kind: str, rate: float, warmup_steps: int, steps: int, final_fraction: float) -> optax.Schedule:
    """Linear warm-up to `rate`, then a cosine down to `final_fraction * rate` at `steps`, or constant."""
    warmup = min(warmup_steps, steps - 1)
    rise = optax.linear_schedule(0.0, rate, warmup) if warmup else optax.constant_schedule(rate)
    if kind == "constant":
        after = optax.constant_schedule(rate)
    else:
        after = optax.cosine_decay_schedule(rate, steps - warmup, alpha=final_fraction)
    return optax.join_schedules([rise, after], [warmup])


def adamw(
    rate: optax.Schedule, *, b1: float, b2: float, weight_decay: float, clip: float, mask: Any
) -> optax.GradientTransformation:
    """Global-norm clipping, then AdamW that decays only where the tree `mask` is True (sec. 3.1)."""
    return optax.chain(
        optax.clip_by_global_norm(clip), optax.adamw(rate, b1=b1, b2=b2, weight_decay=weight_decay, mask=mask)
    )
