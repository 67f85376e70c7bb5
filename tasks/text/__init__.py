"""Text: documents, tokens, windows."""

from evalkit.tasks.text.text import Text as Text
