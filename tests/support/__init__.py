"""Helpers of the tests."""

from support import typecheck as typecheck  # which pytest finds as an attribute
