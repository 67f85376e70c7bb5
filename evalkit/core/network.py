"""Asks a server whether it is there, before anything waits for it."""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, TypeVar

from evalkit.core.errors import UserError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

Answer = TypeVar("Answer")


def within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Returns `ask()`, or raises what it raises; raises TimeoutError if it takes longer than `seconds`.

    >>> within(1.0, lambda: 2)
    2
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    # A thread, because a name look-up has no time-out of its own. It is a daemon, so that no process waits for it at
    # its end; the threads of an executor are joined there.
    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


class Silent(Exception):
    """A hub does not answer, or not in time."""


class Refused(Exception):
    """A hub answers that it does not give what it was asked for: why, and what to do about it, in one clause."""

    def __init__(self, status: int | None, reason: str):
        super().__init__(reason if status is None else f"{reason} (status {status})")
        self.is_passing = status == 429 or (status is not None and status >= 500)


def ask_hub(name: str, kind: Literal["model", "dataset"], seconds: float) -> None:
    """Returns if the Hugging Face hub lets us have a model or a data set; raises Refused or Silent if it does not.

    The library's own retries have no limit together; here everything takes at most `seconds`.
    """
    # Imported here, since few runs ask a hub and it takes half a second.
    import huggingface_hub
    import huggingface_hub.constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    endpoint = huggingface_hub.constants.ENDPOINT
    if huggingface_hub.constants.HF_HUB_CACHE.startswith("~"):
        raise UserError(f"{name}: this user has no home, in which the hub's files are kept; set HF_HOME to a folder")
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise Silent(f"the hub ({endpoint}) is not asked, since HF_HUB_OFFLINE is set")
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
    try:
        within(seconds, lambda: huggingface_hub.HfApi(endpoint=endpoint).auth_check(name, repo_type=kind))
    except GatedRepoError as error:
        advice = f"is gated; accept its terms at {page}, then log in with hf auth login"
        raise Refused(_status_of(error), advice) from error
    except (RepositoryNotFoundError, HfHubHTTPError) as error:
        status = _status_of(error)
        raise Refused(status, _advice(status, page, isinstance(error, RepositoryNotFoundError))) from error
    except Exception as error:  # of a name look-up, a connection, time: the types change from version to version
        raise Silent(f"the hub ({endpoint}) does not answer") from error


def _status_of(error: "HfHubHTTPError") -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _advice(status: int | None, page: str, unknown: bool) -> str:
    """What a status of the hub means for its user."""
    if status == 401 or (status is None and unknown):
        return f"is not at {page}, or is private; check the name, or log in with hf auth login"
    if status == 403:
        return f"may not be read with this account; ask for access at {page}, or log in with hf auth login"
    if status == 404 or unknown:
        return f"is not at {page}; check the name"
    if status == 429:
        return "is asked for too often; wait some minutes, or log in with hf auth login"
    return "meets an error of the hub; try again later"


def answers(url: str, seconds: float) -> bool:
    """Returns whether any HTTP server answers at `url` within `seconds`, name look-up included."""

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
        except urllib.error.HTTPError as refusal:  # a server that refuses is a server
            refusal.close()

    try:
        within(seconds, ask)
    except Exception:
        return False
    return True
