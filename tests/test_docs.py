"""Every file that a page of `docs/` or the README names in backticks is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`((?:evalkit|models|tasks|kernels|conf|tests|benchmarks|docs)/[\w/.-]+\.(?:py|md|yaml|sh|json))`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    own = {"conf/recipe/my_task/paper/griffin.yaml", "conf/recipe/my_task/paper.yaml"}  # examples of a user's
    named = set(NAMED.findall(page.read_text(encoding="utf-8"))) - own
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
