"""Names of the metrics of needles, and what is right, apart from what computes them: reports import no JAX."""

import re
from collections.abc import Sequence

FOUND, ALL = "found", "all_found"
METRICS = (FOUND, ALL)
"""The share of the hidden values that the answer holds, as RULER scores them, and whether it holds all of them.

Other values in the answer cost nothing. Each row is of prompts of one `length` whose answers stand at `extra.depth`,
from 0 to 1, or null: anywhere.
"""


def share_found(reply: str, answers: Sequence[str]) -> float:
    """The share of the values that are in the reply as whole words, whatever else it says, in upper or lower case.

    >>> share_found("They are 12 and 345.", ["12", "999"])
    0.5
    """
    whole = (rf"(?<!\w){re.escape(answer)}(?!\w)" for answer in answers)
    return sum(re.search(one, reply, re.IGNORECASE) is not None for one in whole) / len(answers)
