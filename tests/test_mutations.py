"""Mistakes that are planted on purpose are of the code as it is; `support/mutations.py` tries the tests on them."""

import pytest

from support.mutations import MUTATIONS, PLANTED, ROOT


def test_each_mistake_can_be_planted() -> None:
    counts = {one.name: (ROOT / one.file).read_text(encoding="utf-8").count(one.right) for one in MUTATIONS}
    assert counts == dict.fromkeys(counts, 1) and len(counts) == 20


@pytest.mark.fault
def test_every_planted_defect_has_its_place() -> None:
    for mutation in PLANTED:
        assert (ROOT / mutation.file).read_text(encoding="utf-8").count(mutation.right) == 1, mutation.name
