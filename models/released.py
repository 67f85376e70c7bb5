"""Models that others released, from a folder: Hugging Face's (`config.json`, safetensors)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models import gemma, recurrentgemma, weights
from models.model import Model, Params
from models.safetensors import SafeTensors

ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Any], str], weights.Plan]] = {
    "recurrent_gemma": recurrentgemma.from_hugging_face,
    "gemma": gemma.from_hugging_face,
}
# A head that some files carry although it is tied, and frequencies that older ones do although they follow.
UNUSED = ("lm_head.weight", "rotary_emb.inv_freq")


class Released(NamedTuple):
    """A model with its parameters, and its configuration as it was released."""

    model: Model
    params: Params
    config: Mapping[str, Any]


def hugging_face(folder: Path, dtype: str) -> Released:
    """RecurrentGemma or Gemma v1, activations and matrices in `dtype`.

    Raises ValueError, before weights are read, for an unknown architecture, a configuration that is not served, and a
    tensor that is missing, truncated, unknown or of another shape.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"config.json is not JSON ({error}); download it again") from error
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ValueError(f"config.json has model_type={kind!r}; allowed: {', '.join(ARCHITECTURES)}")
    try:
        plan = ARCHITECTURES[kind](config, dtype)
    except KeyError as error:
        raise ValueError(f"config.json has no {error.args[0]!r}, which {kind} needs; download it again") from error
    return Released(plan.model, weights.read(plan, SafeTensors(folder), dtype, UNUSED), config)
