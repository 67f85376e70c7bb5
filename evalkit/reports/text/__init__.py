"""Loss by position on text."""
