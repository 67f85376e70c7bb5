"""Accuracy by length and by training step."""

from evalkit.reports.accuracy.report import figures, records, tables
from evalkit.reports.accuracy.summary import summarise

__all__ = ["figures", "records", "summarise", "tables"]
