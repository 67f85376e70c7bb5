"""The planted mistakes of `support/mutations.py` are of the code as it is; that file itself tries the tests on them."""

from support.mutations import MUTATIONS, ROOT


def test_each_mistake_can_be_planted() -> None:
    counts = {one.name: (ROOT / one.file).read_text(encoding="utf-8").count(one.right) for one in MUTATIONS}
    assert counts == dict.fromkeys(counts, 1) and len(counts) == 20
