"""Writes a tiny random Griffin of Google DeepMind's recurrentgemma: its Orbax checkpoint, tokens, and its logits.

.peers/recurrentgemma/bin/python benchmarks/peers/recurrentgemma_logits.py FOLDER
python benchmarks/peers/recurrentgemma_check.py FOLDER       # in this project's environment
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from recurrentgemma import common
from recurrentgemma import jax as recurrentgemma

R, A = common.TemporalBlockType.RECURRENT, common.TemporalBlockType.ATTENTION
WINDOW, ROWS, LENGTH = 8, 3, 40

folder = Path(sys.argv[1]).absolute()
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
    leaf + 0.3 * jax.random.normal(key, leaf.shape) * (leaf.std() + 0.3) for leaf, key in zip(leaves, keys, strict=True)
]
params = jax.tree.unflatten(tree, leaves)
ragged = jnp.stack([jnp.maximum(jnp.arange(LENGTH) - pads, -1) for pads in (0, 11, 25)])
packed = jnp.broadcast_to(jnp.concatenate([jnp.arange(17), jnp.arange(LENGTH - 17)]), (ROWS, LENGTH))
logits = {
    name: np.asarray(model.apply({"params": params}, tokens, positions, return_cache=False)[0])
    for name, positions in (("whole", whole), ("ragged", ragged), ("packed", packed))
}
ocp.PyTreeCheckpointer().save(folder / "checkpoint", params, force=True)
np.savez(
    folder / "logits.npz", tokens=tokens, ragged_positions=ragged, packed_positions=packed, window=WINDOW, **logits
)
print(f"largest logit {max(np.abs(x).max() for x in logits.values()):.3f}; written to {folder}")
