"""The loss on texts by position and by context."""
