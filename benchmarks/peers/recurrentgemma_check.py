"""Holds this project's model to what `recurrentgemma_logits.py` wrote in FOLDER: logits to 1e-5, every way of calling.

Their `window` W sees W keys before the token itself, so it is W + 1 here.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.models.formats import released

TOLERANCE = 1e-5


def errors(folder: Path) -> dict[str, float]:
    """The largest difference of logits by the way of calling."""
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


def main() -> int:
    """Prints the differences; fails if one is above `TOLERANCE`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    found = errors(parser.parse_args().folder)
    for name, error in found.items():
        print(f"{name:<16}{error:.1e}")
    return int(not all(error <= TOLERANCE for error in found.values()))  # NaN is no small difference


if __name__ == "__main__":
    sys.exit(main())
