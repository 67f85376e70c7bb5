"""A model with its parameters and tokenizer, wherever they come from: what text tasks and lm-eval are run on."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evalkit.checkpoints import hub as hub_checkpoints
from evalkit.checkpoints import tokenizer_files
from evalkit.checkpoints.loading import restore
from evalkit.configuration.saved import checkpoint_of, from_file
from evalkit.core.contracts import Params, Pretrained
from evalkit.core.errors import UserError
from evalkit.models.formats import released
from evalkit.tasks.text.tokenizers import Bytes, Numbers
from evalkit.training.state import params_of

PUBLISHED_VOCABULARY, PUBLISHED_TRAIN_LENGTH = 256_000, 8192  # of RecurrentGemma and Gemma v1 alike


def load(checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = ()) -> Pretrained:
    """A run of this project, RecurrentGemma or Gemma v1, from a folder or by its name on the hub.

    `dtype` is that of activations, and of the matrices of a model that others released; a run's first seed keeps its
    float32 parameters. `allow_targets` are packages whose code a run may name, besides evalkit. Raises UserError,
    before weights are read, for what cannot be found or is not served.
    """
    folder = Path(checkpoint).expanduser()
    if not folder.is_dir():
        folder = hub_checkpoints.download(checkpoint)
    try:
        if (folder / "config.yaml").is_file():
            return _run(folder, checkpoint, dtype, allow_targets)
        return _theirs(folder, checkpoint, dtype)
    except ValueError as error:
        raise UserError(f"checkpoint {checkpoint}: {error}") from error


def load_for_text(checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = ()) -> Pretrained:
    """As `load`; raises UserError for a model whose tokens stand for no text, too."""
    found = load(checkpoint, dtype, allow_targets)
    if isinstance(found.tokenizer, Numbers):
        raise UserError(
            f"checkpoint {checkpoint} has {found.tokenizer.vocab_size} tokens, which stand for no text; "
            f"give one of {Bytes.vocab_size}, bytes and the two ends of a text, or a released model"
        )
    return found


def digest(params: Params) -> str:
    """SHA-256 of every parameter with its name, shape and dtype, in hexadecimal."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        # Of a copy, since JAX keeps what NumPy was given for as long as the array lives; on a CPU it gives its own.
        array = np.asarray(leaf if jax.default_backend() == "cpu" else jnp.copy(leaf))
        found.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _run(folder: Path, checkpoint: str, dtype: str, packages: Sequence[str]) -> Pretrained:
    """A run of ours: on text, on as many tokens as bytes have, or on tokens that stand for no text."""
    measured = checkpoint_of(folder / "config.yaml")
    if measured is not None:
        raise UserError(f"{checkpoint} measured the checkpoint {measured}; give that one")
    experiment = from_file(folder / "config.yaml", [f"model.dtype={dtype}"], ("model.dtype",), packages)
    model, _ = experiment.trained
    size = experiment.task.vocab_size
    state, _ = restore(experiment, folder)
    params = params_of(state, 0, experiment.parameters)
    tokenizer = experiment.feed.tokenizer
    settings = json.dumps([experiment.config["model"], size, tokenizer.name], sort_keys=True, default=str)
    return Pretrained(model, params, tokenizer, checkpoint, digest(params), experiment.task.length, settings)


def _theirs(folder: Path, checkpoint: str, dtype: str) -> Pretrained:
    found = released.find(folder, dtype)
    size = found.model.vocab_size
    tokenizer = tokenizer_files.read(folder, size, found.config)
    params = found.read()
    published = PUBLISHED_TRAIN_LENGTH if size == PUBLISHED_VOCABULARY else None
    length = found.config.get("max_position_embeddings", published)
    settings = json.dumps([{**found.config}, found.model.window, tokenizer_files.digest(folder)], sort_keys=True)
    return Pretrained(found.model, params, tokenizer, checkpoint, digest(params), length, settings)
