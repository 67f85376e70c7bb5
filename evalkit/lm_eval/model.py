"""A checkpoint, by its folder or its name on the hub, as a model of lm-eval."""

import inspect
from typing import Any, get_type_hints

import jax
from lm_eval.api.registry import register_model
from lm_eval.config.evaluate_config import EvaluatorConfig

from evalkit.checkpoints.pretrained import find_for_text
from evalkit.checks import refuse_other_types
from evalkit.core.contracts import Pretrained
from evalkit.core.errors import UserError
from evalkit.evaluations.downstream.language_model import PretrainedLM

SETTINGS = list(inspect.signature(PretrainedLM).parameters)
DEFAULT_DEVICE = EvaluatorConfig().device
"""The device that lm-eval's command passes to a model where the user named none."""


@register_model("evalkit")
class EvalkitLM(PretrainedLM):
    """The model behind `--model evalkit --model_args pretrained=CHECKPOINT,…`.

    `pretrained` is an argument of `evalkit.checkpoints.pretrained.load`, or its result; the other `settings` are those
    of `PretrainedLM`. The rest are arguments of lm-eval, which always passes some of them. They have no effect: batches
    have a constant number of tokens, no code of a checkpoint runs, and JAX decides the device, so lm-eval's default is
    ignored. Raises UserError, before the weights are read, for an unknown setting, and for a device that is not in use.
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
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> None:
        for name in settings:
            if name not in SETTINGS:
                raise UserError(f"model argument {name!r} is unknown; allowed: {', '.join(SETTINGS)}")
        try:
            refuse_other_types({"max_length": max_length, **settings}, get_type_hints(PretrainedLM.__init__))
        except ValueError as error:
            raise UserError(f"model argument {error}") from error
        if not pretrained:
            raise UserError("model argument pretrained is missing; give --model_args pretrained=CHECKPOINT")
        if device not in (None, DEFAULT_DEVICE, *_names_of_device()):
            raise UserError(
                f"device={device!r} is lm-eval's, and JAX uses {jax.default_backend()}; "
                "leave it out, and choose the device by JAX_PLATFORMS=cpu, cuda or tpu"
            )
        if max_length is not None and max_length < 1:
            raise UserError(f"max_length={max_length}; allowed: 1 or more")
        checkpoint = pretrained if isinstance(pretrained, Pretrained) else find_for_text(str(pretrained), dtype)
        super().__init__(checkpoint, dtype=dtype, max_length=max_length, **settings)


def _names_of_device() -> tuple[str, ...]:
    """What lm-eval's users call the device that JAX uses."""
    backend = jax.default_backend()
    return ("cuda", "cuda:0", "gpu") if backend == "gpu" else (backend,)
