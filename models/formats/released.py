"""Opens released models from a folder: Hugging Face's (`config.json`, safetensors) or DeepMind's (Orbax)."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from evalkit.models.formats import described, gemma, recurrentgemma, recurrentgemma_flax, weights
from evalkit.models.formats.orbax import OrbaxTensors, is_checkpoint
from evalkit.models.formats.safetensors import SafeTensors
from evalkit.models.model import Model, Params

ARCHITECTURES: Mapping[str, Callable[[Mapping[str, Any], str, str | None], weights.Plan]] = {
    "recurrent_gemma": recurrentgemma.from_hugging_face,
    "gemma": gemma.from_hugging_face,
}
# Some files hold a head although it is tied, and older ones hold frequencies although the configuration gives them.
UNUSED = ("lm_head.weight", "rotary_emb.inv_freq")
WIDEST = 2**24
DEEPEST = 512  # four times the deepest model that is known; 4,096 layers were laid out for 20 s before the refusal
SIZES: Mapping[str, int] = {
    "num_hidden_layers": DEEPEST,
    **dict.fromkeys(("vocab_size", "hidden_size", "lru_width", "intermediate_size", "head_dim"), WIDEST),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "conv1d_width"), WIDEST),
    **dict.fromkeys(("attention_window_size", "max_position_embeddings"), 2**40),
}
"""The integers of a `config.json` and their limits: a model is built before its tensors are checked."""
NUMBERS = ("rope_theta", "partial_rotary_factor", "logits_soft_cap")
DEEPMIND_WINDOW = 2048 + 1  # its code sees 2048 keys before the token itself


class Released(NamedTuple):
    """A model, its `config.json` (empty where there is none), and a function that reads its parameters."""

    model: Model
    config: Mapping[str, Any]
    read: Callable[[], Params]


def find(folder: Path, dtype: str, cache_dtype: str | None = None) -> Released:
    """Opens `folder` by `hugging_face` if it has a `config.json`, else by `deepmind`.

    For the latter, the folder or exactly one of its subfolders is an Orbax checkpoint. Raises ValueError for anything
    else.
    """
    if (folder / "config.json").is_file():
        return hugging_face(folder, dtype, cache_dtype)
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and is_checkpoint(path)]
    checkpoints = [folder] if is_checkpoint(folder) else inside
    if len(checkpoints) != 1:
        several = f" ({', '.join(path.name for path in inside)})" if inside else ""
        raise ValueError(
            f"it has no config.json, and {len(inside) or 'no'} checkpoints of Orbax{several}; give the folder of a "
            "run, or of one released model"
        )
    return deepmind(checkpoints[0], dtype, cache_dtype)


def hugging_face(folder: Path, dtype: str, cache_dtype: str | None = None) -> Released:
    """Opens RecurrentGemma or Gemma v1, with activations and matrices in `dtype`.

    Keys and values are kept in `cache_dtype`; None: in `dtype`, which rounds none of them. Raises ValueError for an
    unknown architecture, a configuration that is not served, and a tensor that is missing, truncated, unknown or of
    another shape.
    """
    config = described.read(folder / "config.json")
    kind = config.get("model_type")
    if kind not in list(ARCHITECTURES):
        shown = described.shown(repr(kind))
        raise ValueError(f"config.json has model_type={shown}; allowed: {', '.join(ARCHITECTURES)}")
    described.refuse_unlike(config, SIZES, NUMBERS)
    try:
        plan = ARCHITECTURES[kind](config, dtype, cache_dtype)
    except KeyError as error:
        raise ValueError(f"config.json has no {error.args[0]!r}, which {kind} needs; download it again") from error
    except (TypeError, AttributeError, ArithmeticError) as error:  # a list where a number should be, and the like
        raise ValueError(f"config.json cannot be a {kind}'s ({error}); download it again") from error
    return _checked(plan, SafeTensors(folder), dtype, config)


def deepmind(folder: Path, dtype: str, cache_dtype: str | None = None, window: int = DEEPMIND_WINDOW) -> Released:
    """Opens RecurrentGemma from the Orbax checkpoint of its Flax release, with activations and matrices in `dtype`.

    `window` counts the token itself. Raises ValueError as `hugging_face` does.
    """
    tensors = OrbaxTensors(folder)
    try:
        plan = recurrentgemma_flax.from_orbax(tensors.shapes, window, dtype, cache_dtype)
    except (KeyError, IndexError) as error:
        raise ValueError(f"the tensor {error.args[0]} is missing or of another shape; download it again") from error
    return _checked(plan, tensors, dtype, {})


def _checked(plan: weights.Plan, tensors: weights.Tensors, dtype: str, config: Mapping[str, Any]) -> Released:
    weights.check(plan.tensors, tensors.shapes, UNUSED)
    return Released(plan.model, config, partial(weights.read, plan, tensors, dtype))
