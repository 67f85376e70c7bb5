"""A checkpoint by its name on the hub, through `huggingface_hub`: what it cannot give is told within three seconds."""

import re
import threading
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from evalkit.core.errors import UserError

ANSWER_SECONDS = 2.0
NAME = re.compile(r"[\w.-]+/[\w.-]+")
NOT_NEEDED = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]


def download(name: str) -> Path:
    """The folder with the files of `name` (owner/model), downloaded or, where the hub is silent, from the cache.

    Raises UserError for a name that is none, is gated or absent, and for a silent hub without a copy in the cache.
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
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"checkpoint {name} cannot be downloaded: {reason[:200]}; try again") from error
        raise UserError(
            f"checkpoint {name} is no folder here, and the hub ({huggingface_hub.constants.ENDPOINT}) does not answer; "
            "give a folder with a copy of it, or the cache of a machine that has it (HF_HOME)"
        ) from error


def _answers(name: str) -> bool:
    """Whether the hub lets us have `name`; False if it is silent. Raises UserError if it says no."""
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        return False
    answers: list[Exception | None] = []

    def ask() -> None:
        try:
            huggingface_hub.HfApi().auth_check(name)
            answers.append(None)
        except Exception as error:
            answers.append(error)

    # A thread, because neither a name look-up nor the library's own retries have a limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS)
    answer = answers[0] if answers else TimeoutError()
    page = f"{huggingface_hub.constants.ENDPOINT}/{name}"
    if isinstance(answer, GatedRepoError):
        raise UserError(
            f"checkpoint {name} is gated; accept its terms at {page}, then log in with hf auth login"
        ) from answer
    if isinstance(answer, RepositoryNotFoundError):
        raise UserError(
            f"checkpoint {name} is neither a folder here nor {page}; check the name, or hf auth login if it is private"
        ) from answer
    return answer is None
