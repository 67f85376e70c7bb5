"""RecurrentGemma in DeepMind's own checkpoints: Flax names, in an Orbax tree with a subtree for each layer."""

from collections.abc import Iterator, Mapping

import numpy as np

from evalkit.models.formats.recurrentgemma import Config, model
from evalkit.models.formats.weights import FLAT, NEGATED, ONE_PLUS, SAME, Layout, Path, Plan, Tensor


def from_orbax(shapes: Mapping[str, tuple[int, ...]], window: int, dtype: str, cache_dtype: str | None = None) -> Plan:
    """Returns the model of DeepMind's own checkpoint, whose configuration is in the shapes of its tensors.

    The window is not in them. It counts the token itself, so give W + 1 for a checkpoint whose code sees W keys before
    the token. Raises ValueError for other shapes.
    """
    parsed = parse(shapes, window)
    return Plan(model(parsed, dtype, cache_dtype), list(tensors(parsed)))


def parse(shapes: Mapping[str, tuple[int, ...]], window: int) -> Config:
    """Returns the configuration that the shapes of a checkpoint imply."""
    unit = "recurrent_block/rg_lru/input_gate/w"
    layers = {name.partition("/")[0] for name in shapes if name.startswith("blocks.")}
    first = next((f"{layer}/{unit}" for layer in sorted(layers) if f"{layer}/{unit}" in shapes), None)
    if first is None or "embedder/input_embedding" not in shapes:
        raise ValueError("it is no RecurrentGemma: that has an embedder and blocks.0, blocks.1 and so on at its root")
    vocab_size, width = shapes["embedder/input_embedding"]
    heads, size, _ = shapes[first]
    recurrent = [f"blocks.{index}/{unit}" in shapes for index in range(len(layers))]
    return Config(
        vocab_size=vocab_size,
        width=width,
        width_rnn=heads * size,
        mlp_width=shapes["blocks.0/mlp_block/ffw_up/w"][2],
        heads=heads,
        pattern=tuple("recurrent" if yes else "attention" for yes in recurrent),
        window=window,
        conv_width=shapes[f"{first.partition('/')[0]}/recurrent_block/conv_1d/w"][0],
    )


def tensors(config: Config) -> Iterator[Tensor]:
    """Yields DeepMind's tensors: linear maps are `x @ kernel`; an MLP's two branches are one tensor, the gate first."""
    d, f = config.width, config.mlp_width
    yield Tensor(("embedding", "table"), "embedder/input_embedding", (config.vocab_size, d), SAME)
    yield Tensor(("norm", "scale"), "final_norm/scale", (d,), ONE_PLUS)
    for index, kind in enumerate(config.pattern):
        block, theirs = ("blocks", index), f"blocks.{index}"
        yield Tensor((*block, "mixer_norm", "scale"), f"{theirs}/temporal_pre_norm/scale", (d,), ONE_PLUS)
        yield Tensor((*block, "mlp_norm", "scale"), f"{theirs}/channel_pre_norm/scale", (d,), ONE_PLUS)
        for branch, ours in enumerate(("gate", "up")):
            up = (*block, "mlp", ours)
            yield Tensor((*up, "kernel"), f"{theirs}/mlp_block/ffw_up/w", (2, d, f), _part(branch))
            yield Tensor((*up, "bias"), f"{theirs}/mlp_block/ffw_up/b", (2, 1, 1, f), _part(branch, 0, 0))
        yield from _linear((*block, "mlp", "down"), f"{theirs}/mlp_block/ffw_down", f, d)
        if kind == "attention":
            yield from _attention(config, (*block, "mixer"), f"{theirs}/attention_block")
        else:
            yield from _recurrent(config, (*block, "mixer"), f"{theirs}/recurrent_block")


def _attention(config: Config, ours: Path, theirs: str) -> Iterator[Tensor]:
    d, h, all_heads = config.width, config.head_dim, config.heads * config.head_dim
    yield Tensor((*ours, "query", "kernel"), f"{theirs}/proj_q/kernel", (d, all_heads), SAME)
    yield Tensor((*ours, "key", "kernel"), f"{theirs}/proj_k/kernel", (d, h), SAME)
    yield Tensor((*ours, "value", "kernel"), f"{theirs}/proj_v/kernel", (d, h), SAME)
    yield from _linear((*ours, "output"), f"{theirs}/proj_final", all_heads, d)


def _recurrent(config: Config, ours: Path, theirs: str) -> Iterator[Tensor]:
    d, r, blocks = config.width, config.width_rnn, config.heads
    yield from _linear((*ours, "input"), f"{theirs}/linear_x", d, r)
    yield from _linear((*ours, "gate"), f"{theirs}/linear_y", d, r)
    yield from _linear((*ours, "output"), f"{theirs}/linear_out", r, d)
    yield Tensor((*ours, "conv", "kernel"), f"{theirs}/conv_1d/w", (config.conv_width, r), SAME)
    yield Tensor((*ours, "conv", "bias"), f"{theirs}/conv_1d/b", (r,), SAME)
    yield Tensor((*ours, "rglru", "decay"), f"{theirs}/rg_lru/a_param", (r,), NEGATED)
    for gate, name in (("input_gate", "input_gate"), ("recurrence_gate", "a_gate")):
        square = (blocks, r // blocks, r // blocks)
        yield Tensor((*ours, "rglru", gate, "kernel"), f"{theirs}/rg_lru/{name}/w", square, SAME)
        yield Tensor((*ours, "rglru", gate, "bias"), f"{theirs}/rg_lru/{name}/b", square[:2], FLAT)


def _linear(ours: Path, theirs: str, inputs: int, outputs: int) -> Iterator[Tensor]:
    yield Tensor((*ours, "kernel"), f"{theirs}/kernel", (inputs, outputs), SAME)
    yield Tensor((*ours, "bias"), f"{theirs}/bias", (outputs,), SAME)


def _part(*index: int) -> Layout:
    """Returns the layout of one of several parameters in a tensor, which can be read but not written."""
    return Layout(lambda x: x[index], _refuse)


def _refuse(x: np.ndarray) -> np.ndarray:
    raise ValueError(f"a part of shape {x.shape} cannot be written alone; export to Hugging Face's format")
