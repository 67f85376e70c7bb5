"""Gemma v1 with one key and value head, an MQA Transformer (Mesnard et al. 2024, arXiv 2403.08295)."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from evalkit.models.formats.weights import ONE_PLUS, SAME, TRANSPOSED, Plan, Tensor, require
from evalkit.models.mixers.attention import MQA
from evalkit.models.model import build

FIXED = {
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "num_key_value_heads": 1,
}


def from_hugging_face(config: Mapping[str, Any], dtype: str, cache_dtype: str | None = None) -> Plan:
    """Returns the model of a `config.json` and its tensors' names; raises ValueError for an unsupported setting."""
    # The first releases say `hidden_act` "gelu" but mean the tanh form; `hidden_activation` is null or that form.
    require({**config, "hidden_act": config.get("hidden_activation") or FIXED["hidden_act"]}, FIXED)
    rope = {**config, **(config.get("rope_parameters") or {})}
    require(rope, {"rope_type": "default", "rope_scaling": None, "use_bidirectional_attention": None})
    attention = partial(
        MQA,
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
        window=None,
        rope_base=rope.get("rope_theta", 10_000.0),
        cache_dtype=cache_dtype or dtype,
    )
    model = build(
        vocab_size=config["vocab_size"],
        width=config["hidden_size"],
        pattern=("attention",) * config["num_hidden_layers"],
        mixers={"attention": attention},
        mlp_expansion=config["intermediate_size"] / config["hidden_size"],
        dtype=dtype,
    )
    return Plan(model, list(tensors(config)))


def tensors(config: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yields Hugging Face's tensors."""
    d, f, h = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    all_heads = config["num_attention_heads"] * h
    yield Tensor(("embedding", "table"), "model.embed_tokens.weight", (config["vocab_size"], d), SAME)
    yield Tensor(("norm", "scale"), "model.norm.weight", (d,), ONE_PLUS)
    for index in range(config["num_hidden_layers"]):
        ours, theirs = ("blocks", index), f"model.layers.{index}"
        yield Tensor((*ours, "mixer_norm", "scale"), f"{theirs}.input_layernorm.weight", (d,), ONE_PLUS)
        yield Tensor((*ours, "mlp_norm", "scale"), f"{theirs}.post_attention_layernorm.weight", (d,), ONE_PLUS)
        for path, name, shape in (
            (("mixer", "query"), "self_attn.q_proj", (all_heads, d)),
            (("mixer", "key"), "self_attn.k_proj", (h, d)),
            (("mixer", "value"), "self_attn.v_proj", (h, d)),
            (("mixer", "output"), "self_attn.o_proj", (d, all_heads)),
            (("mlp", "gate"), "mlp.gate_proj", (f, d)),
            (("mlp", "up"), "mlp.up_proj", (f, d)),
            (("mlp", "down"), "mlp.down_proj", (d, f)),
        ):
            yield Tensor((*ours, *path, "kernel"), f"{theirs}.{name}.weight", shape, TRANSPOSED)
