"""This project, as `compare.py` times it, and held to the logits that `run_recurrentgemma.py` wrote.

    python benchmarks/peers/run_ours.py step|decode CASE
    python benchmarks/peers/run_ours.py check FOLDER

The first is called by `compare.py`, and CASE is JSON.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import process

from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Pretrained
from evalkit.inference.generation import generate
from evalkit.inference.texts import Generated
from evalkit.models.formats import released
from evalkit.parallel import devices
from evalkit.tasks.text.tokenizers import Numbers
from evalkit.training.trainer import Trainer

TOLERANCE = 1e-5


def step(case: dict) -> None:
    """One training step, as a user's run takes it: the data made inside, several steps a dispatch."""
    devices.use_every_core()
    built = Spec.of(case["overrides"]).experiment
    jax.config.update("jax_default_matmul_precision", built.matmul_precision)
    trainer = Trainer(built.task, built.model, built.train, [0])
    state = trainer.init()
    stage = built.train.stages(built.task.length)[-1]
    tokens = stage.length + built.task.answer_length
    assert (stage.batch_size, tokens) == (case["batch"], case["length"]), (stage, tokens)
    assert built.model.window == case["window"], built.model.window

    def take(steps: int) -> None:
        """That many steps in one dispatch, as a run takes them."""
        nonlocal state
        state, sums = trainer.advance(state, stage, steps)
        jax.block_until_ready(sums)

    process.serve(take, sum(leaf[0].size for leaf in jax.tree.leaves(state.params)))


def decode(case: dict) -> None:
    """Greedy decoding, as `evalkit generate` decodes: prompts as tokens in, texts out."""
    devices.spare_memory()
    devices.use_every_core()
    model, config, read = released.find(Path(case["folder"]), "float32")
    pretrained = Pretrained(model, read(), Numbers(config["vocab_size"]), case["folder"], "", None)
    texts: list[Generated] = []

    def take(calls: int) -> None:
        """That many calls, each with all prompts."""
        nonlocal texts
        for _ in range(calls):
            texts = generate(pretrained, case["prompts"], case["tokens"], batch_size=len(case["prompts"]))

    process.serve(
        take,
        sum(leaf.size for leaf in jax.tree.leaves(pretrained.params)),
        lambda: {"tokens": [list(said.tokens) for said in texts]},
    )


def errors(folder: Path) -> dict[str, float]:
    """The largest difference of logits by the way of calling.

    Their `window` W sees W keys before the token itself, so it is W + 1 here.
    """
    kept = np.load(folder / "logits.npz")
    model, _, read = released.deepmind(folder / "checkpoint", "float32", window=int(kept["window"]) + 1)
    params, apply, tokens = read(), jax.jit(model.apply), jnp.asarray(kept["tokens"], jnp.int32)
    found = {"one call": np.abs(apply(params, tokens)[0] - kept["whole"]).max()}
    for name in ("ragged", "packed"):
        positions = jnp.asarray(kept[f"{name}_positions"], jnp.int32)
        difference = np.abs(apply(params, tokens, positions)[0] - kept[name])
        found[name] = difference[np.asarray(positions) >= 0].max()
    for name, size in (("chunks of 10", 10), ("single tokens", 1)):
        cache, parts = model.init_cache(*tokens.shape), []
        for start in range(0, tokens.shape[1], size):
            logits, cache = apply(params, tokens[:, start : start + size], None, cache)
            parts.append(logits)
        found[name] = np.abs(np.concatenate(parts, axis=1) - kept["whole"]).max()
    return {name: float(error) for name, error in found.items()}


def check(folder: Path) -> None:
    """Prints the differences; exits with 1 if one is above `TOLERANCE`."""
    found = errors(folder)
    for name, error in found.items():
        print(f"{name:<16}{error:.1e}")
    sys.exit(int(not all(error <= TOLERANCE for error in found.values())))  # NaN is no small difference


if __name__ == "__main__":
    process.called({"step": step, "decode": decode}, {"check": check})
