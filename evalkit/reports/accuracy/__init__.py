"""Accuracy by length and by training step."""

from evalkit.reports.accuracy.costs import against
from evalkit.reports.accuracy.report import figures, records, tables
from evalkit.reports.accuracy.summary import summarise

__all__ = ["against", "figures", "records", "summarise", "tables"]
