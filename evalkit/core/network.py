"""Whether a server is there, asked before anything waits for it."""

import threading
import urllib.error
import urllib.request


def answers(url: str, seconds: float) -> bool:
    """Whether anything at `url` speaks HTTP within `seconds`, name look-up included."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(url, timeout=seconds).close()
        except urllib.error.HTTPError as refusal:
            refusal.close()
        except Exception:
            return
        answered.set()

    # A thread, because a name look-up has no timeout of its own.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return answered.is_set()
