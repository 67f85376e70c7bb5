"""What looks at a model cost while it trains: the seconds of all, and a line where they take too much of the time."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from evalkit.core.rows import Row

MOST = 0.2
"""The largest share of the time that looks may take before a line says what to change."""
WORTH_SAYING = 10.0
"""Seconds that the looks of one setting took together, before anything is said of them."""


@dataclass
class Looked:
    """The last look of one setting: its step, the second it ended at, and the seconds of all so far."""

    step: int
    ended: float
    seconds: float


@dataclass
class Costs:
    """The cost of looks by the setting that says how often they are made, such as `eval.during.every`.

    Models are validated every `eval_every` steps. `clock` gives seconds. The first look of each setting is not judged,
    because it compiles.
    """

    say: Callable[[str], None]
    eval_every: int
    clock: Callable[[], float] = time.perf_counter
    looked: dict[str, Looked] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """What all looks took."""
        return sum(each.seconds for each in self.looked.values())

    def timed(self, setting: str, rows: Iterable[Row], step: int) -> list[Row]:
        """The rows of a look after so many steps; one without rows was not due."""
        began = self.clock()
        made = list(rows)
        if made:
            ended = self.clock()
            before = self.looked.get(setting, Looked(step, began, 0.0))
            now = self.looked[setting] = Looked(step, ended, before.seconds + ended - began)
            if setting not in self.said and now.seconds > WORTH_SAYING:
                self._judge(setting, now.step - before.step, began - before.ended, ended - began)
        return made

    def _judge(self, setting: str, steps: int, between: float, seconds: float) -> None:
        """Says what to change if a look of so many `seconds` takes too much, `steps` after the one before."""
        share = seconds / (between + seconds)
        if steps and share > MOST:
            self.said.add(setting)
            enough = seconds * (1 - MOST) / MOST * steps / between
            every = math.ceil(enough / self.eval_every) * self.eval_every
            self.say(
                f"a look while training takes {seconds:.1f} s, {share:.0%} of the time; {setting}={every} makes it "
                f"{MOST:.0%}, or let it read less"
            )
