"""From words to objects: what can be chosen, how it composes, what it builds."""
