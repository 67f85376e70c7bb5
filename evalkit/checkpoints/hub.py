"""Downloads a checkpoint by its name on the hub; a hub that is silent or refuses is reported within three seconds."""

import re
from pathlib import Path

import huggingface_hub

from evalkit.core.errors import UserError, first_line
from evalkit.core.network import Refused, Silent, ask_hub

ANSWER_SECONDS = 2.0
NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Other formats of the same weights, which nothing here reads.
NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]


def download(name: str) -> Path:
    """Returns the folder with the files of `name` (owner/model): downloaded, or from the cache if the hub is silent.

    Raises UserError for a malformed, gated or unknown name, and for a silent hub without a copy in the cache.
    """
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
        raise UserError(
            f"checkpoint {name} is no folder here, and {error}; give a folder with a copy of it, or the cache of a "
            "machine that has it (HF_HOME)"
        ) from error
    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=NOT_NEEDED))
    except Exception as error:  # of many types, which change from version to version
        raise UserError(f"checkpoint {name} cannot be downloaded: {first_line(error)[:200]}; try again") from error


def _cached(name: str) -> Path | None:
    """The folder with the files of `name` that were downloaded before, None if there is none."""
    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=NOT_NEEDED, local_files_only=True))
    except Exception:  # as in download
        return None
