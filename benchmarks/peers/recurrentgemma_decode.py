"""Greedy decoding by Google DeepMind's recurrentgemma: its `Sampler` on the same weights, compiled."""

import json
import os
from pathlib import Path

# In order XLA takes 41 ms where it takes 66 by itself, for 512 tokens of 250K parameters; set before JAX is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_enable_concurrency_optimized_scheduler=false")

import jax
import jax.numpy as jnp
import numpy as np
import worker
from recurrentgemma import common
from recurrentgemma import jax as recurrentgemma
from safetensors.numpy import load_file

TYPES = {
    "recurrent": common.TemporalBlockType.RECURRENT,
    "attention": common.TemporalBlockType.ATTENTION,
}


class Numbers:
    """What `Sampler` asks of a SentencePiece vocabulary, for prompts that are numbers already."""

    def __init__(self, bos: int):
        self.bos = bos

    def bos_id(self) -> int:
        """The token that `Sampler` puts before a prompt."""
        return self.bos

    def pad_id(self) -> int:
        """A token for what is left of a shorter prompt."""
        return 0

    def eos_id(self) -> int:
        """No token ends a text here."""
        return -1

    def EncodeAsIds(self, text: str) -> list[int]:
        """The numbers in `text`."""
        return [int(word) for word in text.split()]

    def DecodeIds(self, tokens: list[int]) -> str:
        """The tokens as numbers."""
        return " ".join(map(str, tokens))


def parameters(tensors: dict[str, np.ndarray], types: list[str]) -> dict:
    """The weights of a RecurrentGemma folder as recurrentgemma names and turns them."""

    def linear(name: str) -> dict:
        kernel = {"kernel": tensors[f"{name}.weight"].T}
        return kernel | ({"bias": tensors[f"{name}.bias"]} if f"{name}.bias" in tensors else {})

    def block(index: int, kind: str) -> dict:
        layer = f"model.layers.{index}"
        mixer, mlp = f"{layer}.temporal_block", f"{layer}.mlp_block"
        up = [linear(f"{mlp}.{name}") for name in ("gate_proj", "up_proj")]
        found = {
            "temporal_pre_norm": {"scale": tensors[f"{layer}.temporal_pre_norm.weight"]},
            "channel_pre_norm": {"scale": tensors[f"{layer}.channel_pre_norm.weight"]},
            "mlp_block": {
                "ffw_up": {
                    "w": np.stack([part["kernel"] for part in up]),
                    "b": np.stack([part["bias"] for part in up])[:, None, None],
                },
                "ffw_down": linear(f"{mlp}.down_proj"),
            },
        }
        if kind == "attention":
            names = {"proj_q": "q_proj", "proj_k": "k_proj", "proj_v": "v_proj", "proj_final": "o_proj"}
            return found | {"attention_block": {ours: linear(f"{mixer}.{theirs}") for ours, theirs in names.items()}}
        unit = f"{mixer}.rg_lru"
        gates = {"input_gate": "input_gate", "a_gate": "recurrent_gate"}
        recurrent = {name: linear(f"{mixer}.{name}") for name in ("linear_x", "linear_y", "linear_out")}
        recurrent["conv_1d"] = {
            "w": tensors[f"{mixer}.conv_1d.weight"][:, 0].T,
            "b": tensors[f"{mixer}.conv_1d.bias"],
        }
        recurrent["rg_lru"] = {"a_param": tensors[f"{unit}.recurrent_param"]} | {
            ours: {"w": tensors[f"{unit}.{theirs}_weight"], "b": tensors[f"{unit}.{theirs}_bias"]}
            for ours, theirs in gates.items()
        }
        return found | {"recurrent_block": recurrent}

    blocks = {f"blocks.{index}": block(index, kind) for index, kind in enumerate(types)}
    embedding = {"input_embedding": tensors["model.embed_tokens.weight"]}
    return {"embedder": embedding, "final_norm": {"scale": tensors["model.final_norm.weight"]}, **blocks}


case = worker.case()
folder = Path(case["folder"])
config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
model = recurrentgemma.Griffin(
    common.GriffinConfig(
        vocab_size=config["vocab_size"],
        width=config["hidden_size"],
        mlp_expanded_width=config["intermediate_size"] // 2,
        num_heads=config["num_attention_heads"],
        block_types=tuple(TYPES[kind] for kind in config["block_types"]),
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=config["attention_window_size"],
        logits_soft_cap=config["logits_soft_cap"],
        lru_width=config["lru_width"],
        scan_type=common.ScanType.ASSOCIATIVE_NATIVE,
    )
)
params = jax.tree.map(jnp.asarray, parameters(load_file(folder / "model.safetensors"), config["block_types"]))
sampler = recurrentgemma.Sampler(model=model, vocab=Numbers(case["prompts"][0][0]), params=params)
strings = [" ".join(map(str, prompt[1:])) for prompt in case["prompts"]]
found: list[list[int]] = []


def take(calls: int) -> None:
    """That many calls, each with all prompts."""
    global found
    for _ in range(calls):
        output = sampler(strings, case["tokens"], end_sampling_at_eos_token=False)
        found = [jax.device_get(tokens).tolist() for tokens in output.tokens]


worker.serve(take, sum(leaf.size for leaf in jax.tree.leaves(params)), lambda: {"tokens": found})
