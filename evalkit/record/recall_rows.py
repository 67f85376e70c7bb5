"""What the rows of a recall evaluation are called; nothing heavy is imported for it."""

RECALLED = "recalled"
"""A sequence each: right or wrong, the question `position` tokens after the fact, before which are `extra.before`
tokens; `length` counts all of them. `extra.asked` and `extra.right` count by the fact's answer, from 0."""

FORGETTING = "forgetting"
"""A context each: the mean of δ = −log a (1/tokens) over the tokens after the fact, of channel `extra.channel` of block
`extra.block`; `extra.share` is that channel's part of the square of `DIFFERENCE` where it begins (from 0 to 1)."""

DIFFERENCE = "difference"
"""A pair of contexts each, alike but for the fact: the distance between the states of `extra.block`, `position` tokens
after it, relative to that `extra.first` tokens after it."""

DRIFT = "drift"
"""A pair of contexts each: how far what their states of `extra.block` have in common has moved, `position` tokens after
the fact, since `extra.first` tokens after it; relative to their distance there. Above 1, the other tokens have done
more to the state than the fact."""

RESTORED = "restored"
"""A sequence each: right or wrong, the question `position` tokens after the fact, to a state put back in part to what
it was `extra.first` tokens after it, in `extra.block` or (null) in every block. `extra.undone` says which part."""

NOTHING_UNDONE, DRIFT_UNDONE, FORGETTING_UNDONE = "nothing", "drift", "forgetting"
"""No part; what a context's states have in common whatever the fact; what the fact parts them by."""

RAW = (RECALLED, FORGETTING, DIFFERENCE, DRIFT, RESTORED)
