"""Values of settings: what the constructors' signatures say of them, and Python's own arrive as they are."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalkit.configuration.grammar import parse
from evalkit.configuration.overrides import overrides_of
from evalkit.configuration.schema import describe, fits, nearest
from evalkit.core.errors import UserError


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


NAMES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,5}\Z")
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
NESTED = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2))


def same(one: Any, other: Any) -> bool:
    """Equal in value and type, NaN with itself."""
    if isinstance(one, list | dict) and type(one) is type(other):
        pairs = zip(one, other, strict=True) if isinstance(one, list) else ((one[key], other[key]) for key in one)
        return len(one) == len(other) and all(same(*pair) for pair in pairs)
    return type(one) is type(other) and (one == other or (one != one and other != other))


@given(value=NESTED.filter(lambda value: not isinstance(value, dict)))
def test_a_value_arrives_as_it_is(value: Any) -> None:
    (override,) = parse(overrides_of({"a": {"b.c": value}}))
    assert override.key_or_group == "a.b.c" and not override.is_sweep_override()
    assert same(override.value(), value)


def test_numbers_of_numpy_tuples_and_paths_arrive_as_plain_values() -> None:
    given = {"i": np.int32(3), "f": np.float32(0.5), "l": np.arange(2), "t": (1, "x"), "p": Path("a b"), "n": math.inf}
    found = {override.key_or_group: override.value() for override in parse(overrides_of(given))}
    assert found == {"i": 3, "f": 0.5, "l": [0, 1], "t": [1, "x"], "p": "a b", "n": math.inf}


@pytest.mark.parametrize("given", [{"a b": 1}, {"a=b": 1}, {"++a": 1}, {"~a": None}, {"": 1}, {"a": {1: 2}}])
def test_what_is_no_key_is_refused(given: dict[Any, Any]) -> None:
    with pytest.raises(UserError, match="is no name of a setting"):
        overrides_of(given)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, [object()], np.array([1j])])
def test_what_is_no_value_is_refused(value: Any) -> None:
    with pytest.raises(UserError, match="allowed: numbers, text"):
        overrides_of({"a": value})
