"""Names of the metrics of needles, and what is right, apart from what computes them: reports import no JAX."""

from collections.abc import Sequence

FOUND, WHOLE = "found", "exact_match"
METRICS = (FOUND, WHOLE)
"""The share of the hidden values that the answer holds, as RULER scores them, and whether it holds all of them.

Each row is of prompts of one `length` whose first answer stands at `extra.depth`, from 0 to 1.
"""


def found(reply: str, answers: Sequence[str]) -> float:
    """The share of the values that are in the reply, whatever else it says, in upper or lower case.

    >>> found("They are 12 and 345.", ["12", "999"])
    0.5
    """
    said = reply.lower()
    return sum(answer.lower() in said for answer in answers) / len(answers)
