"""Every defect that is planted on purpose still has its place in the code."""

from pathlib import Path

import pytest

from support.planted import PLANTED

pytestmark = pytest.mark.fault
ROOT = Path(__file__).parents[2]


def test_every_planted_defect_has_its_place() -> None:
    for mutation in PLANTED:
        assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.right) == 1, mutation.name
