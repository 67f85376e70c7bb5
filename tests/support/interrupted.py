"""A run that is stopped as soon as that is possible."""

import signal
from typing import Self

from evalkit.parallel.interrupt import Watch


class StopAfterOneDispatch(Watch):
    """A signal has always come already."""

    def __enter__(self) -> Self:
        self.received = [signal.SIGINT]
        return self

    def __exit__(self, *_: object) -> None:
        pass
