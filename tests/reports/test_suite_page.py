"""The page of the suite's results shows the cells that are kept, and no others."""

from support.suite_page import PAGE, written


def test_the_tables_are_those_of_the_cells_that_are_kept() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "write them anew: python -m tests.support.suite_page"
