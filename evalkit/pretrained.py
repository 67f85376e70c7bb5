"""A model with its parameters and tokenizer, wherever they come from: what text tasks and lm-eval are run on."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from evalkit.config import from_file
from evalkit.errors import UserError
from evalkit.loading import restore
from evalkit.protocols import LanguageModel, Params
from evalkit.tokenizer import Bytes, Tokenizer
from evalkit.train import params_of


@dataclass(frozen=True)
class Pretrained:
    """`source` is the folder or hub name; `digest` names the parameters; `train_length` is None where unknown."""

    model: LanguageModel
    params: Params
    tokenizer: Tokenizer
    source: str
    digest: str
    train_length: int | None


def load(checkpoint: str, dtype: str) -> Pretrained:
    """The first seed of a run that this project trained on bytes; `dtype` is that of activations.

    Raises UserError for anything else.
    """
    run = Path(checkpoint).expanduser()
    if not (run / "config.yaml").is_file():
        state = "is not the folder of a run: it has no config.yaml" if run.is_dir() else "does not exist"
        raise UserError(f"checkpoint {checkpoint} {state}; give one such as runs/<task>/<model>/<time>")
    experiment = from_file(run / "config.yaml", [f"model.dtype={dtype}"], ("model.dtype",))
    if experiment.task.vocab_size != Bytes.vocab_size:
        raise UserError(
            f"checkpoint {checkpoint} has {experiment.task.vocab_size} tokens, which stand for no text; "
            f"give one of {Bytes.vocab_size}, bytes and the two ends of a text"
        )
    state, _ = restore(experiment, run)
    params = params_of(state, 0)
    return Pretrained(experiment.model, params, Bytes(), checkpoint, digest(params), experiment.task.length)


def digest(params: Params) -> str:
    """SHA-256 of every parameter with its name, shape and dtype, in hexadecimal."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.hexdigest()
