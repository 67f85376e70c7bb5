"""Names of the metrics of a text evaluation, apart from what computes them: reports import no JAX.

Each row is of one document. `total` sums the mean losses (nats per token) of `count` windows or passages, and of
`HELPED_SHORT` and `HELPED_LONG` the losses of `count` tokens, of which a passage has more or fewer; `extra` has the
`document` and its `bytes_per_token`. `position` is set, because reports alone take averages over documents.
"""

LOSS = "loss"
"""The loss by position: of predictions after `extra.after` + 1 to `position` tokens, in a window of `length`."""

PAIRED = "paired_loss"
"""The loss of passages given the `position` tokens before them in their own document, and nothing earlier."""

FOREIGN = "foreign_loss"
"""The loss of the same passages given as many tokens, of which all but the last `extra.own` are another document's."""

HELPED_SHORT, HELPED_LONG = "helped_short_loss", "helped_long_loss"
"""The loss of the tokens that a longer context helps most, given `position` tokens: without it and with it.

`extra.chosen_by` names the run by whose losses these tokens were chosen."""

REPEATED, FRESH = "repeated_loss", "fresh_loss"
"""The loss of a passage that also stood `position` tokens earlier, and of the same one where another stood there."""

RAW = (LOSS, PAIRED, FOREIGN, HELPED_SHORT, HELPED_LONG, REPEATED, FRESH)
