"""What the rows of a text evaluation are called; nothing heavy is imported for it.

Each is a row a document: `total` sums one mean loss (nats a token) a window or passage, `count` counts them, `extra`
has the `document` and its `bytes_per_token`. `position` is set: averages over documents are taken by reports alone.
"""

from collections.abc import Sequence
from hashlib import sha256

LOSS = "loss"
"""By position: of the predictions after `extra.after` + 1 to `position` tokens, in a window of `length`."""

PAIRED = "paired_loss"
"""Of the same passages after `position` tokens of their own document, and nothing before."""

FOREIGN = "foreign_loss"
"""Of the same passages after `position` tokens, of which all but the last `extra.own` are another document's."""

HELPED_SHORT, HELPED_LONG = "helped_short_loss", "helped_long_loss"
"""Of the tokens that the longer context helps most, after `position` tokens; `extra.chosen_by` says by whose losses."""

REPEATED, FRESH = "repeated_loss", "fresh_loss"
"""Of a passage that also stood `position` tokens before, and of the same where another one stood there."""

RAW = (LOSS, PAIRED, FOREIGN, HELPED_SHORT, HELPED_LONG, REPEATED, FRESH)


def digest_of(contents: Sequence[str]) -> str:
    """Names a set of texts by the SHA-256 of each, in whatever order."""
    return sha256("\n".join(sorted(contents)).encode()).hexdigest()
