"""Types and names: what the constructors' signatures say about a value."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from evalkit.configuration.schema import describe, fits, nearest


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, int, True),
        (True, int, False),
        (1.0, int, False),
        (1, float, True),
        (True, float, False),
        ("1", float, False),
        (True, bool, True),
        (1, bool, False),
        (None, int | None, True),
        (None, int, False),
        ([1, 2], list[int], True),
        ([1, "2"], list[int], False),
        ("12", Sequence[str], False),
        ([0.1, 0.2], tuple[float, float], True),
        ([0.1], tuple[float, float], False),
        ([0.1], tuple[float, ...], True),
        ([0.1], tuple[float, float] | list[float], True),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, Mapping[str, int], False),
        ([{"a": 1}], list[dict[str, int]], True),
        ("b", Literal["a", "b"], True),
        ("c", Literal["a", "b"], False),
        (object(), Any, True),
        ("anything", Path, True),
    ],
)
def test_values_are_held_to_simple_annotations(value: Any, annotation: Any, expected: bool) -> None:
    assert fits(value, annotation) is expected


def test_annotations_are_described_in_the_words_of_yaml() -> None:
    assert describe(int | None) == "int or null"
    assert describe(list[int]) == "a list of int"
    assert describe(dict[str, float]) == "a mapping of float"


def test_nearest_prefers_the_same_place_then_the_same_name() -> None:
    valid = ["task.length", "eval.lengths", "train.steps", "seeds"]
    assert nearest("eval.length", valid) == "eval.lengths"
    assert nearest("length", valid) == "task.length"
    assert nearest("steps", valid) == "train.steps"
