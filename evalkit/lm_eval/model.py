"""A checkpoint, by its folder or its name on the hub, as a model of lm-eval."""

import inspect
from typing import Any

from lm_eval.api.registry import register_model

from evalkit.checkpoints.pretrained import load_for_text
from evalkit.core.contracts import Pretrained
from evalkit.core.errors import UserError
from evalkit.evaluations.downstream.language_model import PretrainedLM

SETTINGS = list(inspect.signature(PretrainedLM).parameters)


@register_model("evalkit")
class EvalkitLM(PretrainedLM):
    """What `--model evalkit --model_args pretrained=CHECKPOINT,…` gives.

    `pretrained` is what `evalkit.checkpoints.pretrained.load` takes, or what it gives; the other `settings` are those
    of `PretrainedLM`. `batch_size`, `max_batch_size` and `device` are lm-eval's: batches here are of constant tokens,
    and the device is JAX's. Raises UserError, before the weights are read, for a setting that there is not.
    """

    def __init__(
        self,
        pretrained: str | Pretrained = "",
        *,
        dtype: str = "float32",
        max_length: int | None = None,
        batch_size: str | int | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        for name in settings:
            if name not in SETTINGS:
                raise UserError(f"model argument {name!r} is unknown; allowed: {', '.join(SETTINGS)}")
        if not pretrained:
            raise UserError("model argument pretrained is missing; give --model_args pretrained=CHECKPOINT")
        if device is not None:
            raise UserError(f"device={device!r} is lm-eval's; choose the device by JAX_PLATFORMS=cpu, cuda or tpu")
        if max_length is not None and max_length < 1:
            raise UserError(f"max_length={max_length}; allowed: 1 or more")
        checkpoint = pretrained if isinstance(pretrained, Pretrained) else load_for_text(pretrained, dtype)
        super().__init__(checkpoint, dtype=dtype, max_length=max_length, **settings)
