"""Text: documents, tokens, windows."""

from evalkit.tasks.text.text import Text

__all__ = ["Text"]
