"""One process at a time works on a run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from evalkit.core.errors import Unavailable, writing
from evalkit.disk.files import remove_unfinished

FILE = ".lock"
log = logging.getLogger(__name__)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a run's folder, which is made if it is not there; raises Unavailable if another process works on it."""
    # The system lets go of the lock when its process dies, however it dies; the file itself says nothing and stays.
    # On NFS the lock holds between machines only where the mount supports locks.
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / FILE, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise Unavailable(
                f"another process works on {folder}; wait for its end, or stop it with Ctrl-C; if none does, as after "
                f"a kill on a disk that has no locks, delete {folder / FILE}"
            ) from error
        except NotImplementedError:
            log.warning("the disk of %s has no locks, so nothing keeps a second process away", folder)
        remove_unfinished(folder)
    try:
        yield
    finally:
        lock.release()
