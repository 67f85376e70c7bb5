"""The same step in Google DeepMind's recurrentgemma (JAX), at the same sizes and with the same loss."""

import jax
import jax.numpy as jnp
import optax
import worker
from recurrentgemma import common
from recurrentgemma import jax as recurrentgemma

R, A = common.TemporalBlockType.RECURRENT, common.TemporalBlockType.ATTENTION
PATTERNS = {"griffin": (R, R, A, R, R), "hawk": (R,) * 5, "mqa": (A,) * 5}

case = worker.case()
batch, length, scored = case["batch"], case["length"], case["scored"]
model = recurrentgemma.Griffin(
    common.GriffinConfig(
        vocab_size=16,
        width=64,
        mlp_expanded_width=192,
        num_heads=4,
        block_types=PATTERNS[case["model"]],
        embeddings_scale_by_sqrt_dim=True,
        attention_window_size=case["window"] or length,
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


def step() -> None:
    """One dispatch of one step."""
    global params, state
    params, state, value = update(params, state)
    value.block_until_ready()


def take(steps: int) -> None:
    """That many steps."""
    for _ in range(steps):
        step()


worker.serve(take, sum(leaf.size for leaf in jax.tree.leaves(params)))
