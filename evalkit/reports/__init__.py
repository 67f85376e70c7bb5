"""From rows to pages: summaries, tables, figures, comparisons."""
