"""Names of the metrics of a recall evaluation, apart from what computes them: reports import no JAX."""

RECALLED = "recalled"
"""One sequence each, right or wrong: the question stands `position` tokens after the fact, `extra.before` tokens stand
before the fact, and `length` counts them all. `extra.asked` and `extra.right` are counts by the fact's answer."""

FORGETTING = "forgetting"
"""One context each: the mean of δ = −log a (1/tokens) over the tokens after the fact, in channel `extra.channel` of
block `extra.block`. `extra.share`, from 0 to 1, is the channel's part of the square of `DIFFERENCE` where it begins."""

DIFFERENCE = "difference"
"""One pair of contexts each, which differ in the fact alone: the distance between their states of `extra.block`,
`position` tokens after the fact, divided by their distance `extra.first` tokens after it."""

DRIFT = "drift"
"""One pair of contexts each: how far the common part of their states of `extra.block` has moved between `extra.first`
and `position` tokens after the fact, divided by their distance at `extra.first`. Above 1, the other tokens changed the
state more than the fact did."""

RESTORED = "restored"
"""One context each, the share of the facts that are recalled there: the question `position` tokens after the fact,
asked of a state of which a part is set back to its value after the first `extra.first` tokens, the fact among them.
`extra.undone` names the part; `extra.block` is the block, null for every block."""

NOTHING_UNDONE, DRIFT_UNDONE, FORGETTING_UNDONE = "nothing", "drift", "forgetting"
"""The part set back: none, the common part of the states of both contexts, or the difference that the fact makes."""

DRIFT_SHAM, FORGETTING_SHAM = "drift_sham", "forgetting_sham"
"""Control: the same channels are moved by the same distance in a random direction. Accuracy regained here is not an
effect of restoring."""

RAW = (RECALLED, FORGETTING, DIFFERENCE, DRIFT, RESTORED)
