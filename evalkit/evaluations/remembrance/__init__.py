"""Effective remembrance: how much of the past a prediction still depends on, and how large states become."""

CHANGED = "changed"
"""One sequence each: the total variation, from 0 to 1, between the prediction after the last `position` of `length`
tokens alone and the one after all of them: the effect of the tokens before the last `position`."""

STATE_NORM = "state_norm"
"""One sequence each: the Euclidean norm of the state of `extra.block` at the last scored position of `length`
tokens."""
