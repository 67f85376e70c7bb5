"""Loss by position on text."""

from evalkit.reports.text.curves import figures
from evalkit.reports.text.report import records, tables
from evalkit.reports.text.summary import summarise

__all__ = ["figures", "records", "summarise", "tables"]
