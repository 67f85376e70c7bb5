"""Downloads a checkpoint by its name on the hub; a hub that is silent or refuses is reported within three seconds."""

import re
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from evalkit.core.errors import UserError, first_line
from evalkit.core.network import within

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
    reachable = _answers(name)
    try:
        return Path(huggingface_hub.snapshot_download(name, ignore_patterns=NOT_NEEDED, local_files_only=not reachable))
    except Exception as error:  # of many types, which change from version to version
        if reachable:
            raise UserError(f"checkpoint {name} cannot be downloaded: {first_line(error)[:200]}; try again") from error
        raise UserError(
            f"checkpoint {name} is no folder here, and the hub ({huggingface_hub.constants.ENDPOINT}) does not answer; "
            "give a folder with a copy of it, or the cache of a machine that has it (HF_HOME)"
        ) from error


def _answers(name: str) -> bool:
    """Returns whether the hub lets us have `name`: False if it is silent. Raises UserError if it refuses."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    page = f"{huggingface_hub.constants.ENDPOINT}/{name}"
    try:
        # The library's own retries have no limit together.
        within(ANSWER_SECONDS, lambda: huggingface_hub.HfApi().auth_check(name))
    except GatedRepoError as error:
        raise UserError(
            f"checkpoint {name} is gated; accept its terms at {page}, then log in with hf auth login"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"checkpoint {name} is neither a folder here nor {page}; check the name, or hf auth login if it is private"
        ) from error
    except Exception:
        return False
    return True
