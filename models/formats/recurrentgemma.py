"""The configuration and tensors of RecurrentGemma, the released Griffin (Botev et al. 2024, arXiv 2404.07839)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp

from evalkit.models.formats.weights import (
    FLAT,
    NEGATED,
    ONE_PLUS,
    SAME,
    TRANSPOSED,
    Layout,
    Path,
    Plan,
    Tensor,
    require,
)
from evalkit.models.mixers.attention import MQA
from evalkit.models.mixers.rglru import RecurrentBlock
from evalkit.models.model import Model, build

DECAY = {"decay_power": 2.0, "decay_range": (0.81, 0.998001)}  # a between 0.9 and 0.999, a² uniform
FIXED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "num_key_value_heads": 1,
}
CONV = Layout(lambda x: x[:, 0].T, lambda x: x.T)  # [channels, 1, taps]


@dataclass(frozen=True)
class Config:
    """The settings in which RecurrentGemmas differ; `window` counts the token itself."""

    vocab_size: int
    width: int
    width_rnn: int
    mlp_width: int
    heads: int
    pattern: tuple[str, ...]
    window: int
    conv_width: int = 4
    logits_soft_cap: float = 30.0
    rope_base: float = 10_000.0
    rope_fraction: float = 0.5
    scaled_embedding: bool = True

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width_rnn % self.heads:
            raise ValueError(f"{self.heads} heads do not divide the widths {self.width} and {self.width_rnn}")

    @property
    def head_dim(self) -> int:
        """Returns the number of channels of a head."""
        return self.width // self.heads

    @property
    def embedding_scale(self) -> float:
        """Returns the square root of the width, rounded to bfloat16 as in RecurrentGemma."""
        return float(jnp.asarray(self.width**0.5, jnp.bfloat16)) if self.scaled_embedding else 1.0


def from_hugging_face(config: Mapping[str, Any], dtype: str, cache_dtype: str | None = None) -> Plan:
    """Returns the model of a `config.json` and its tensors' names; raises ValueError for an unsupported setting."""
    parsed = parse(config)
    return Plan(model(parsed, dtype, cache_dtype), list(tensors(parsed)))


def parse(config: Mapping[str, Any]) -> Config:
    """Parses a `config.json`: with `block_types` and `rope_parameters`, or as first published, with `_block_types`."""
    heads = config["num_attention_heads"]
    require({**config, "num_key_value_heads": config.get("num_key_value_heads") or heads}, FIXED)
    period = config.get("block_types") or config["_block_types"]
    layers = config["num_hidden_layers"]
    rope = {**config, **(config.get("rope_parameters") or {})}
    require(rope, {"rope_type": "default", "rope_scaling": None})
    return Config(
        vocab_size=config["vocab_size"],
        width=config["hidden_size"],
        width_rnn=config.get("lru_width") or config["hidden_size"],
        mlp_width=config["intermediate_size"] // 2,  # RecurrentGemma counts both branches together
        heads=heads,
        pattern=tuple((list(period) * layers)[:layers]),
        window=config["attention_window_size"],
        conv_width=config.get("conv1d_width", 4),
        logits_soft_cap=config.get("logits_soft_cap", 30.0),
        rope_base=rope.get("rope_theta", 10_000.0),
        rope_fraction=rope.get("partial_rotary_factor", 0.5),
        scaled_embedding=config.get("embeddings_scale_by_sqrt_dim", True),
    )


def model(config: Config, dtype: str, cache_dtype: str | None = None) -> Model:
    """Builds the model that a configuration describes; it allocates no array. A `cache_dtype` of None is `dtype`."""
    recurrent = partial(
        RecurrentBlock,
        width_rnn=config.width_rnn,
        gate_blocks=config.heads,
        conv_width=config.conv_width,
        bias=True,
        unit_reset=True,
        **DECAY,
    )
    attention = partial(
        MQA,
        heads=config.heads,
        head_dim=config.head_dim,
        window=config.window,
        rope_base=config.rope_base,
        rope_fraction=config.rope_fraction,
        output_bias=True,
        cache_dtype=cache_dtype or dtype,
    )
    return build(
        vocab_size=config.vocab_size,
        width=config.width,
        pattern=config.pattern,
        mixers={"recurrent": recurrent, "attention": attention},
        mlp_expansion=config.mlp_width / config.width,
        mlp_bias=True,
        embedding_scale=config.embedding_scale,
        logits_soft_cap=config.logits_soft_cap,
        dtype=dtype,
    )


def tensors(config: Config) -> Iterator[Tensor]:
    """Yields Hugging Face's tensors."""
    d, f = config.width, config.mlp_width
    yield Tensor(("embedding", "table"), "model.embed_tokens.weight", (config.vocab_size, d), SAME)
    yield Tensor(("norm", "scale"), "model.final_norm.weight", (d,), ONE_PLUS)
    for index, kind in enumerate(config.pattern):
        block, theirs = ("blocks", index), f"model.layers.{index}"
        temporal, mlp = f"{theirs}.temporal_block", f"{theirs}.mlp_block"
        yield Tensor((*block, "mixer_norm", "scale"), f"{theirs}.temporal_pre_norm.weight", (d,), ONE_PLUS)
        yield Tensor((*block, "mlp_norm", "scale"), f"{theirs}.channel_pre_norm.weight", (d,), ONE_PLUS)
        yield from _linear((*block, "mlp", "gate"), f"{mlp}.gate_proj", f, d)
        yield from _linear((*block, "mlp", "up"), f"{mlp}.up_proj", f, d)
        yield from _linear((*block, "mlp", "down"), f"{mlp}.down_proj", d, f)
        mixer = _attention if kind == "attention" else _recurrent
        yield from mixer(config, (*block, "mixer"), temporal)


def _attention(config: Config, ours: Path, theirs: str) -> Iterator[Tensor]:
    d, h, all_heads = config.width, config.head_dim, config.heads * config.head_dim
    yield Tensor((*ours, "query", "kernel"), f"{theirs}.q_proj.weight", (all_heads, d), TRANSPOSED)
    yield Tensor((*ours, "key", "kernel"), f"{theirs}.k_proj.weight", (h, d), TRANSPOSED)
    yield Tensor((*ours, "value", "kernel"), f"{theirs}.v_proj.weight", (h, d), TRANSPOSED)
    yield from _linear((*ours, "output"), f"{theirs}.o_proj", d, all_heads)


def _recurrent(config: Config, ours: Path, theirs: str) -> Iterator[Tensor]:
    d, r, blocks = config.width, config.width_rnn, config.heads
    yield from _linear((*ours, "input"), f"{theirs}.linear_x", r, d)
    yield from _linear((*ours, "gate"), f"{theirs}.linear_y", r, d)
    yield from _linear((*ours, "output"), f"{theirs}.linear_out", d, r)
    yield Tensor((*ours, "conv", "kernel"), f"{theirs}.conv_1d.weight", (r, 1, config.conv_width), CONV)
    yield Tensor((*ours, "conv", "bias"), f"{theirs}.conv_1d.bias", (r,), SAME)
    yield Tensor((*ours, "rglru", "decay"), f"{theirs}.rg_lru.recurrent_param", (r,), NEGATED)
    for gate, name in (("input_gate", "input_gate"), ("recurrence_gate", "recurrent_gate")):
        square = (blocks, r // blocks, r // blocks)
        yield Tensor((*ours, "rglru", gate, "kernel"), f"{theirs}.rg_lru.{name}_weight", square, SAME)
        yield Tensor((*ours, "rglru", gate, "bias"), f"{theirs}.rg_lru.{name}_bias", square[:2], FLAT)


def _linear(ours: Path, theirs: str, outputs: int, inputs: int) -> Iterator[Tensor]:
    yield Tensor((*ours, "kernel"), f"{theirs}.weight", (outputs, inputs), TRANSPOSED)
    yield Tensor((*ours, "bias"), f"{theirs}.bias", (outputs,), SAME)
