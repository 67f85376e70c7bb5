"""What a search varies: intervals and choices, in the words of Hydra's own sweeps."""

from collections.abc import Mapping
from math import floor, log10
from typing import NamedTuple

from hydra.core.override_parser.types import IntervalSweep, Override

from evalkit.configuration import grammar
from evalkit.configuration.grammar import Words
from evalkit.core.errors import UserError

WIDE = 10
"""An interval whose ends are so many times apart is drawn by its logarithm."""
TAGS = ("log", "linear")
DIGITS = 3
"""So many digits has a number that is drawn, and of so many its interval's width: 0.9 to 0.9999 has many values."""


class Interval(NamedTuple):
    """Numbers from `low` to `high`; `log`: uniform in the logarithm; `whole`: whole numbers."""

    low: float
    high: float
    log: bool
    whole: bool


Value = str | int | float
Space = Mapping[str, Interval | list[str]]
"""What each searched key may be, by the key as it is typed: an interval, or the texts of its choices."""


def space_of(words: Words) -> Space:
    """The keys that these words give several values; raises UserError if there is none, or for a wrong interval."""
    parsed = grammar.parse(words)
    own = grammar.own_folder(parsed)
    space: dict[str, Interval | list[str]] = {}
    for override in (override for override in parsed if override.is_sweep_override()):
        value = override.value()
        is_interval = isinstance(value, IntervalSweep)
        space[override.get_key_element()] = (
            _interval(override, value) if is_interval else grammar.choices_of(override, own)
        )
    if not space:
        raise UserError(
            "nothing is searched; give values, as model=hawk,mqa or 'train.learning_rate=interval(1e-4,1e-2)'"
        )
    return space


def at(words: Words, values: Mapping[str, Value]) -> list[str]:
    """The words of one run, in the same order: each searched key has its value, floats rounded within the interval."""
    return [_at(word, values) for word in grammar.parse(words)]


def corners(space: Space) -> list[dict[str, Value]]:
    """Points of the space that together have each choice and each end of an interval; they are built as a check."""
    ends = {key: list(of) if isinstance(of, list) else _ends(of) for key, of in space.items()}
    longest = max(map(len, ends.values()))
    return [{key: of[min(place, len(of) - 1)] for key, of in ends.items()} for place in range(longest)]


def _ends(interval: Interval) -> list[Value]:
    return [int(end) if interval.whole else end for end in (interval.low, interval.high)]


def _at(word: Override, values: Mapping[str, Value]) -> str:
    """The word with the value that was drawn, if it is searched."""
    key, sweep = word.get_key_element(), word.value()
    if key not in values:
        return grammar.text_of(word)
    value = values[key]
    if not isinstance(value, float) or not isinstance(sweep, IntervalSweep):
        return f"{key}={value}"
    low, high = float(sweep.start or 0), float(sweep.end or 0)
    places = max(DIGITS - 1 - floor(log10(abs(size))) for size in (value or 1.0, high - low))
    return f"{key}={min(max(round(value, places), low), high):.12g}"


def _interval(override: Override, sweep: IntervalSweep) -> Interval:
    low, high, tags = sweep.start, sweep.end, sorted(sweep.tags)
    text = grammar.text_of(override)
    if low is None or high is None or not low < high:
        raise UserError(f"{text} is empty; give the lower end first, as interval(1e-4,1e-2)")
    if not set(tags) <= set(TAGS) or len(tags) > 1:
        raise UserError(f"{text} has tags {', '.join(tags)}; allowed: one of {', '.join(TAGS)}")
    if tags == ["log"] and low <= 0:
        raise UserError(f"{text} has no logarithm at {low}; give ends above 0")
    log = tags == ["log"] if tags else low > 0 and high >= WIDE * low
    return Interval(low, high, log, whole=isinstance(low, int) and isinstance(high, int))
