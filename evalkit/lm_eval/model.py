"""A checkpoint, by its folder or its name on the hub, as a model of lm-eval."""

import inspect
from collections.abc import Mapping
from typing import Any

from lm_eval.api.registry import register_model

from evalkit.checkpoints.pretrained import load_for_text
from evalkit.core.contracts import Pretrained
from evalkit.core.errors import UserError
from evalkit.downstream.language_model import PretrainedLM

LM_EVALS_OWN = ("batch_size", "max_batch_size", "device")


@register_model("evalkit")
class EvalkitLM(PretrainedLM):
    """What `--model evalkit --model_args pretrained=CHECKPOINT,…` gives.

    `pretrained` is what `evalkit.checkpoints.pretrained.load` takes, or what it gives; the other settings are those of
    `PretrainedLM`. `batch_size`, `max_batch_size` and `device` are lm-eval's: batches here are of constant tokens, and
    the device is JAX's. Raises UserError.
    """

    def __init__(
        self,
        pretrained: str | Pretrained,
        *,
        dtype: str = "float32",
        max_length: int | None = None,
        truncate: bool = False,
        add_bos: bool | None = None,
        share_prefixes: bool = True,
        tokens_per_batch: int = 8192,
        chunk: int = 2048,
        batch_size: str | int | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        if device is not None:
            raise UserError(f"device={device!r} is lm-eval's; choose the device by JAX_PLATFORMS=cpu, cuda or tpu")
        if max_length is not None and max_length < 1:  # before the weights are read
            raise UserError(f"max_length={max_length}; allowed: 1 or more")
        super().__init__(
            pretrained if isinstance(pretrained, Pretrained) else load_for_text(pretrained, dtype),
            dtype=dtype,
            max_length=max_length,
            truncate=truncate,
            add_bos=add_bos,
            share_prefixes=share_prefixes,
            tokens_per_batch=tokens_per_batch,
            chunk=chunk,
        )


def build(arguments: Mapping[str, Any]) -> EvalkitLM:
    """The model of lm-eval's `--model_args`; raises UserError for an argument that there is not."""
    allowed = [name for name in inspect.signature(EvalkitLM).parameters if name not in LM_EVALS_OWN]
    for name in arguments:
        if name not in (*allowed, *LM_EVALS_OWN):
            raise UserError(f"model argument {name!r} is unknown; allowed: {', '.join(allowed)}")
    if "pretrained" not in arguments:
        raise UserError("model argument pretrained is missing; give --model_args pretrained=CHECKPOINT")
    return EvalkitLM(**arguments)
