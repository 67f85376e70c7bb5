"""What every peer's process does: say what it is, then take steps when asked, so that only one runs at a time."""

import json
import sys
import time
from collections.abc import Callable


def case() -> dict:
    """What to time, as JSON on the command line; `compare.py` and `decode.py` say what is in it."""
    return json.loads(sys.argv[1])


def serve(take: Callable[[int], None], parameters: int, answer: Callable[[], dict] = dict) -> None:
    """One step to compile, then for each line of stdin, a number of steps to take, a line with milliseconds a step.

    `answer` is asked after the first step; what it gives is said with the number of parameters.
    """
    began = time.perf_counter()
    take(1)
    say({"parameters": parameters, "first_step_s": time.perf_counter() - began, **answer()})
    for line in sys.stdin:
        steps = int(line)
        began = time.perf_counter()
        take(steps)
        say({"ms": (time.perf_counter() - began) / steps * 1e3})


def say(facts: dict) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)
