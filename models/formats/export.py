"""Writes a model as a Hugging Face RecurrentGemma: `config.json` as first published, weights in float32."""

import json
from pathlib import Path
from typing import Any

from evalkit.models.formats import safetensors, weights
from evalkit.models.formats.recurrentgemma import Config, model, tensors
from evalkit.models.lm import LanguageModel
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.models.model import Model, Params


def write(folder: Path, built: Model, params: Params, bos: int | None, eos: int | None) -> None:
    """Writes `config.json` and `model.safetensors` into `folder`; `bos` and `eos` are the tokens at a text's ends.

    Raises ValueError with the reason, before anything is written, for a model that RecurrentGemma cannot express.
    """
    config = config_of(built.module(params))
    plan = weights.Plan(model(config, "float32"), list(tensors(config)))
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(published(config) | {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": None}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    shapes = {tensor.name: tensor.shape for tensor in plan.tensors}
    safetensors.write(folder / safetensors.SINGLE, shapes, weights.written(plan, params))


def published(config: Config) -> dict[str, Any]:
    """Returns the `config.json` in the spelling of the published checkpoints, which every transformers reads."""
    return {
        "architectures": ["RecurrentGemmaForCausalLM"],
        "model_type": "recurrent_gemma",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": 2 * config.mlp_width,
        "num_hidden_layers": len(config.pattern),
        "num_attention_heads": config.heads,
        "num_key_value_heads": 1,
        "head_dim": config.head_dim,
        "lru_width": config.width_rnn,
        "attention_window_size": config.window,
        "conv1d_width": config.conv_width,
        "logits_soft_cap": float(config.logits_soft_cap),  # transformers takes no int for a float
        "rms_norm_eps": 1e-6,
        "rope_theta": float(config.rope_base),
        "partial_rotary_factor": float(config.rope_fraction),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "embeddings_scale_by_sqrt_dim": True,
        "_block_types": list(config.pattern),
        "block_types": list(config.pattern),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def config_of(module: LanguageModel) -> Config:
    """Returns the configuration of a model; raises ValueError, with everything that RecurrentGemma cannot express."""
    mixers = [block.mixer for block in module.blocks]
    recurrent = [m for m in mixers if isinstance(m, RecurrentBlock) and type(m) is RecurrentBlock]
    attention = [m for m in mixers if isinstance(m, MQA) and type(m) is MQA]
    others = sorted({type(mixer).__name__ for mixer in mixers} - {"RecurrentBlock", "MQA"})
    wrong = [f"no {name}" for name in others]
    mlp = module.blocks[0].mlp
    vocab_size, width = module.embedding.table[...].shape

    def one(name: str, values: list[Any], otherwise: Any) -> Any:
        """Returns the value that all share; if they differ, adds a line to `wrong`."""
        if len(set(values)) > 1:
            several = ", ".join(map(str, sorted(set(values), key=str)))
            wrong.append(f"one number for {name}, this model {several}")
        return values[0] if values else otherwise

    config = Config(
        vocab_size=vocab_size,
        width=width,
        width_rnn=one("width_rnn", [m.width_rnn for m in recurrent], width),
        mlp_width=0 if mlp is None else mlp.up.kernel[...].shape[1],
        heads=one("heads and gate_blocks", [m.heads for m in attention] + [m.gate_blocks for m in recurrent], 1),
        pattern=tuple("attention" if isinstance(m, MQA) else "recurrent" for m in mixers),
        window=one("window", [m.window for m in attention], 2048) or 0,
        conv_width=one("conv_width", [m.conv.taps for m in recurrent], 4),
        logits_soft_cap=module.embedding.soft_cap or 0.0,
        rope_base=one("rope_base", [m.rope_base for m in attention], 10_000.0) or 0.0,
        rope_fraction=one("rope_fraction", [m.rotated / m.head_dim for m in attention], 0.5),
    )
    wrong += _differences(module, recurrent, attention, config)
    if wrong:
        raise ValueError(f"it cannot be exported: RecurrentGemma has {'; '.join(wrong)}: train model=griffin_released")
    return config


def _differences(
    module: LanguageModel, recurrent: list[RecurrentBlock], attention: list[MQA], config: Config
) -> list[str]:
    """Returns the settings that RecurrentGemma has and this model has not."""
    mlp, embedding = module.blocks[0].mlp, module.embedding
    biased = all(mixer.input.bias is not None and mixer.conv.bias is not None for mixer in recurrent)
    alike = (
        (biased, "bias=true in its recurrent blocks"),
        (all(mixer.unit_reset for mixer in recurrent), "unit_reset=true"),
        (all(mixer.output.bias is not None for mixer in attention), "output_bias=true"),
        (all(mixer.window is not None for mixer in attention), "a window"),
        (all(mixer.rope_base is not None for mixer in attention), "rope=true"),
        (config.rope_fraction == 0.5, "rope_fraction=0.5"),  # transformers halves a head, whatever config.json says
        (
            all(mixer.heads * mixer.head_dim == config.width for mixer in attention),
            f"heads x head_dim = width, {config.width}",
        ),
        (mlp is not None, "an MLP in each block (mlp_expansion above 0)"),
        (mlp is not None and mlp.up.bias is not None, "mlp_bias=true"),
        (embedding.soft_cap is not None, "a logits_soft_cap"),
        (
            embedding.scale == config.embedding_scale,
            f"embedding_scale={config.embedding_scale:g} at width {config.width}",
        ),
    )
    return [setting for same, setting in alike if not same]
