"""`python -m evalkit rows RUN… [csv=FILE]`: the measurements of runs as one CSV table."""

import sys
from collections.abc import Sequence

from evalkit.commands.guide import Page
from evalkit.core.errors import UserError, typed_path

SETTINGS = ("csv", "split", "metric")
ABOUT = """\
Every measurement of runs as CSV, a record a line; value is the mean over so many sequences.

  csv=FILE      write it, instead of printing
  split=…       of one alone: train, validation, during, test or benchmark
  metric=…      of one alone, such as accuracy"""


def main(arguments: Sequence[str]) -> int:
    """Prints or writes the table and returns 0; raises UserError for a folder without runs."""
    parser = Page("rows", ABOUT, "rows RUN RUN csv=all.csv", "rows runs split=test metric=accuracy | head")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a folder that holds runs")
    parsed = parser.parse_args(arguments)
    from evalkit.core import tidy
    from evalkit.record.files import write_text
    from evalkit.reports.pooling import find_runs

    settings = {name: value for name, _, value in (word.partition("=") for word in parsed.runs) if name in SETTINGS}
    folders = [typed_path(word) for word in parsed.runs if word.partition("=")[0] not in SETTINGS]
    for word in (str(folder) for folder in folders if "=" in str(folder) and not folder.exists()):
        raise UserError(f"{word} is no folder, and rows takes no such setting; it takes {', '.join(SETTINGS)}")
    if not folders:
        raise UserError("rows needs the folder of a run, such as rows runs/<task>/<model>/<time>")
    text = tidy.as_csv(tidy.records(find_runs(folders), settings.get("split"), settings.get("metric")))
    if "csv" in settings:
        write_text(typed_path(settings["csv"]), text)
        print(f"written to {settings['csv']}")
    else:
        sys.stdout.write(text)
    return 0
