"""Google DeepMind's recurrentgemma (JAX), as `compare.py` times it in an environment of its own, and its logits.

    python benchmarks/peers/run_recurrentgemma.py step|decode CASE
    .peers/recurrentgemma/bin/python benchmarks/peers/run_recurrentgemma.py logits FOLDER
    python benchmarks/peers/run_ours.py check FOLDER

The first is called by `compare.py`, and CASE is JSON. The last runs in this project's environment.
"""

import json
import os
import sys
from pathlib import Path

if "decode" in sys.argv:
    # In order XLA takes 41 ms where it takes 66 by itself, for 512 tokens of 250K parameters. JAX reads it at import.
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_enable_concurrency_optimized_scheduler=false")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import process
from recurrentgemma import common
from recurrentgemma import jax as recurrentgemma
from safetensors.numpy import load_file

R, A = common.TemporalBlockType.RECURRENT, common.TemporalBlockType.ATTENTION
PATTERNS = {"griffin": (R, R, A, R, R), "hawk": (R,) * 5, "mqa": (A,) * 5}
TYPES = {"recurrent": R, "attention": A}
WINDOW, ROWS, LENGTH = 8, 3, 40
"""Of the model whose logits are written."""


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


def step(case: dict) -> None:
    """The same training step as ours, at the same sizes and with the same loss."""
    batch, length, scored = case["batch"], case["length"], case["scored"]
    model = recurrentgemma.Griffin(
        common.GriffinConfig(
            vocab_size=16,
            width=64,
            mlp_expanded_width=192,
            num_heads=4,
            block_types=PATTERNS[case["model"]],
            embeddings_scale_by_sqrt_dim=True,
            attention_window_size=case["window"] - 1 if case["window"] else length,  # the keys before a token
            logits_soft_cap=0.0,
            lru_width=64,
            scan_type=getattr(common.ScanType, case["scan"]),
        )
    )
    tokens = jax.random.randint(jax.random.key(0), (batch, length), 0, 16)
    positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    params = model.init(jax.random.key(1), tokens, positions)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = optimizer.init(params)

    @jax.jit
    def update(params, state):
        """AdamW on the cross-entropy of the last `scored` positions."""

        def loss(params):
            logits, _ = model.apply(params, tokens, positions, return_cache=False)
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, -scored:], tokens[:, :scored]).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    def take(steps: int) -> None:
        """That many steps, a dispatch each."""
        nonlocal params, state
        for _ in range(steps):
            params, state, value = update(params, state)
            value.block_until_ready()

    process.serve(take, sum(leaf.size for leaf in jax.tree.leaves(params)))


def decode(case: dict) -> None:
    """Greedy decoding by `Sampler` on the same weights, compiled."""
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
            attention_window_size=config["attention_window_size"] - 1,  # theirs counts the keys before a token
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
        nonlocal found
        for _ in range(calls):
            output = sampler(strings, case["tokens"], end_sampling_at_eos_token=False)
            found = [jax.device_get(tokens).tolist() for tokens in output.tokens]

    process.serve(take, sum(leaf.size for leaf in jax.tree.leaves(params)), lambda: {"tokens": found})


def logits(folder: Path) -> None:
    """Writes a tiny random Griffin: its Orbax checkpoint, tokens, and its logits."""
    folder = folder.absolute()
    model = recurrentgemma.Griffin(
        common.GriffinConfig(
            vocab_size=97,
            width=64,
            mlp_expanded_width=160,
            num_heads=4,
            block_types=(R, R, A, R, R),
            embeddings_scale_by_sqrt_dim=True,
            attention_window_size=WINDOW,
            logits_soft_cap=30.0,
            lru_width=96,
            scan_type=common.ScanType.ASSOCIATIVE_NATIVE,
        )
    )
    tokens = jax.random.randint(jax.random.key(0), (ROWS, LENGTH), 0, 97)
    whole = jnp.broadcast_to(jnp.arange(LENGTH), (ROWS, LENGTH))
    params = model.init(jax.random.key(1), tokens, whole)["params"]
    # Every norm, bias and decay away from where it starts, so that none can be mistaken for another.
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    leaves = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape) * (leaf.std() + 0.3)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    params = jax.tree.unflatten(tree, leaves)
    ragged = jnp.stack([jnp.maximum(jnp.arange(LENGTH) - pads, -1) for pads in (0, 11, 25)])
    packed = jnp.broadcast_to(jnp.concatenate([jnp.arange(17), jnp.arange(LENGTH - 17)]), (ROWS, LENGTH))
    found = {
        name: np.asarray(model.apply({"params": params}, tokens, positions, return_cache=False)[0])
        for name, positions in (("whole", whole), ("ragged", ragged), ("packed", packed))
    }
    ocp.PyTreeCheckpointer().save(folder / "checkpoint", params, force=True)
    np.savez(
        folder / "logits.npz", tokens=tokens, ragged_positions=ragged, packed_positions=packed, window=WINDOW, **found
    )
    print(f"largest logit {max(np.abs(x).max() for x in found.values()):.3f}; written to {folder}")


if __name__ == "__main__":
    process.called({"step": step, "decode": decode}, {"logits": logits})
