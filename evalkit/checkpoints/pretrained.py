"""A model with its parameters and tokenizer, wherever they come from: what text tasks and lm-eval are run on."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np

from evalkit.checkpoints import archives, tokenizer_files
from evalkit.checkpoints.loading import restore
from evalkit.configuration.saved import checkpoint_of, plain_of
from evalkit.configuration.schema import settings_of
from evalkit.configuration.spec import Spec
from evalkit.core.contracts import Params, Pretrained, Unread
from evalkit.core.errors import Unavailable, UserError, first_line, typed_path, writing
from evalkit.core.network import Refused, Silent, ask_hub
from evalkit.core.trust import BUILD
from evalkit.models.formats import export as hugging_face
from evalkit.models.formats import released
from evalkit.tasks.text.tokenizers import Bytes, Numbers
from evalkit.training.state import params_of

PUBLISHED_VOCABULARY, PUBLISHED_TRAIN_LENGTH = 256_000, 8192  # of RecurrentGemma and Gemma v1 alike
ANSWER_SECONDS = 2.0
NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Other formats of the same weights, which nothing here reads.
NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]


def load(
    checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = (), cache_dtype: str | None = None
) -> Pretrained:
    """A run of this project, RecurrentGemma or Gemma v1, from a folder or by its name on the hub.

    `dtype` is that of activations, and of the matrices of a model that others released; a run's first seed keeps its
    float32 parameters. `allow_targets` are packages whose code a run may name, besides evalkit. Attention keeps keys
    and values in `cache_dtype`, by default in `dtype`, which rounds none of them. Raises UserError, before weights are
    read, for what cannot be found or is not served.
    """
    return find(checkpoint, dtype, allow_targets, cache_dtype).read()


def find(
    checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = (), cache_dtype: str | None = None
) -> Unread:
    """As `load`, but without reading the weights yet."""
    folder = typed_path(checkpoint)
    if not folder.is_dir():
        folder = download(checkpoint)
    with _named(checkpoint):
        if (folder / "config.yaml").is_file():
            unread = _run(folder, checkpoint, dtype, allow_targets, cache_dtype)
        else:
            unread = _theirs(folder, checkpoint, dtype, cache_dtype)
    return unread._replace(read=_named(checkpoint)(unread.read))


def load_for_text(checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = ()) -> Pretrained:
    """As `load`; also raises UserError for a model whose tokens stand for no text."""
    return find_for_text(checkpoint, dtype, allow_targets).read()


def find_for_text(checkpoint: str, dtype: str = "float32", allow_targets: Sequence[str] = ()) -> Unread:
    """As `load_for_text`, but without reading the weights yet."""
    unread = find(checkpoint, dtype, allow_targets)
    if isinstance(unread.tokenizer, Numbers):
        raise UserError(
            f"checkpoint {checkpoint} has {unread.tokenizer.vocab_size} tokens, which stand for no text; "
            f"give one of {Bytes.vocab_size}, bytes and the two ends of a text, or a released model"
        )
    return unread


def digest(params: Params) -> str:
    """SHA-256 of every parameter with its name, shape and dtype, in hexadecimal."""
    sha256 = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        # Of a copy: JAX keeps the NumPy array that it makes as long as its own lives; on a CPU both share memory.
        array = np.asarray(leaf if jax.default_backend() == "cpu" else jnp.copy(leaf))
        sha256.update(f"{jax.tree_util.keystr(path)} {array.shape} {array.dtype}".encode())
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


@contextmanager
def _named(checkpoint: str) -> Iterator[None]:
    """Turns a `ValueError` in the block into a `UserError` that names the checkpoint."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"checkpoint {checkpoint}: {error}") from error


def _run(folder: Path, checkpoint: str, dtype: str, packages: Sequence[str], cache_dtype: str | None) -> Unread:
    """A run of ours: on text, on as many tokens as bytes have, or on tokens that stand for no text."""
    measured = checkpoint_of(folder / "config.yaml")
    if measured is not None:
        raise UserError(f"{checkpoint} measured the checkpoint {measured}; give that one")
    node = plain_of(folder / "config.yaml", packages)["model"]
    mixers = node.get("mixers", {}) if node.get("_target_") == BUILD else {}  # another model's are its own affair
    has_dtype = "dtype" in settings_of(node, "model")
    if not has_dtype and dtype != "float32":
        raise UserError(f"dtype={dtype}, but the model of {checkpoint} has no setting dtype; leave it out")
    keys = {f"model.mixers.{name}": mixer for name, mixer in mixers.items()}
    kept = [f"{key}.cache_dtype" for key, mixer in keys.items() if "cache_dtype" in settings_of(mixer, key)]
    changes = [*([f"model.dtype={dtype}"] if has_dtype else []), *(f"{key}={cache_dtype or dtype}" for key in kept)]
    experiment = Spec.saved(folder, changes, allowed=("model.dtype", *kept), packages=packages).experiment
    model, _ = experiment.trained
    size, length = experiment.task.vocab_size, experiment.task.length
    tokenizer = experiment.feed.tokenizer
    settings = json.dumps([experiment.config["model"], size, tokenizer.name], sort_keys=True, default=str)

    def read() -> Pretrained:
        params = params_of(restore(experiment, folder)[0], 0, experiment.parameters)
        return Pretrained(model, params, tokenizer, checkpoint, digest(params), length, settings)

    return Unread(model, tokenizer, experiment.task, read, checkpoint)


def _theirs(folder: Path, checkpoint: str, dtype: str, cache_dtype: str | None) -> Unread:
    theirs = released.find(folder, dtype, cache_dtype)
    size = theirs.model.vocab_size
    tokenizer = tokenizer_files.read(folder, size, theirs.config)
    published = PUBLISHED_TRAIN_LENGTH if size == PUBLISHED_VOCABULARY else None
    length = theirs.config.get("max_position_embeddings", published)
    kept = [{**theirs.config}, theirs.model.window, tokenizer_files.digest(folder)]
    own = tokenizer.eos
    ends = tuple(token for token in tokenizer_files.ends(folder, size, theirs.config) if token != own)
    more = [*([cache_dtype] if cache_dtype else []), *([ends] if ends else [])]
    settings = json.dumps([*kept, *more], sort_keys=True)
    chat = tokenizer_files.chat_of(folder)

    def read() -> Pretrained:
        params = theirs.read()
        return Pretrained(theirs.model, params, tokenizer, checkpoint, digest(params), length, settings, chat, ends)

    return Unread(theirs.model, tokenizer, None, read, checkpoint, chat)


def download(name: str) -> Path:
    """Returns the folder with the files of `name` (owner/model): downloaded, or from the cache if the hub is silent.

    Raises UserError for a malformed, gated or unknown name, and for a silent hub without a copy in the cache.
    """
    archives.refuse_without_parameters(Path(name))
    if not NAME.fullmatch(name):
        raise UserError(
            f"checkpoint {name} does not exist; give the folder of a run or a model, or owner/name on the hub"
        )
    cached = _cached(name)
    try:
        ask_hub(name, "model", ANSWER_SECONDS)
    except Refused as refusal:
        if cached is not None and refusal.is_passing:
            return cached
        raise UserError(f"checkpoint {name} is no folder here and {refusal}") from refusal
    except Silent as error:
        if cached is not None:
            return cached
        raise Unavailable(
            f"checkpoint {name} is no folder here, and {error}; give a folder with a copy of it, or the cache of a "
            "machine that has it (HF_HOME)"
        ) from error
    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=NOT_NEEDED))
    except Exception as error:  # of many types, which change from version to version
        raise Unavailable(f"checkpoint {name} cannot be downloaded: {first_line(error)[:200]}; try again") from error


def _cached(name: str) -> Path | None:
    """The folder with the files of `name` that were downloaded before, None if there is none."""
    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=NOT_NEEDED, local_files_only=True))
    except Exception:  # as in download
        return None


def export(run: str, folder: Path) -> None:
    """Writes the run's first seed as a RecurrentGemma folder, with a tokenizer of bytes. Raises UserError."""
    archives.refuse_used(folder)
    trained = load(run)
    model: Any = trained.model  # built by `models`, as what `conf/model/` names is
    tokenizer = trained.tokenizer
    with writing(folder):
        try:
            hugging_face.write(folder, model, trained.params, tokenizer.bos, tokenizer.eos)
        except ValueError as error:
            raise UserError(f"{run}: {error}") from error
        if tokenizer.name == Bytes.name:
            tokenizer_files.write_bytes(folder, tokenizer.bos)
