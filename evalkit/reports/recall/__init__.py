"""Recall by distance, and what loses an answer."""

from evalkit.reports.recall.curves import figures
from evalkit.reports.recall.report import records, tables
from evalkit.reports.recall.summary import summarise

__all__ = ["figures", "records", "summarise", "tables"]
