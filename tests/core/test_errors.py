"""What an error in the user's own code comes to."""

import json

import pytest

from evalkit.core.errors import UserError, place_told


def test_an_error_of_the_users_own_code_is_one_line_with_its_place() -> None:
    with pytest.raises(UserError, match=r"^ZeroDivisionError: .* \(test_errors\.py:\d+\)$"), place_told():
        _ = 1 // 0


def test_a_line_for_the_user_stays_as_it_is() -> None:
    with pytest.raises(UserError, match=r"^give another$"), place_told():
        raise UserError("give another")


def test_what_a_device_says_is_left_as_it_is() -> None:
    class JaxRuntimeError(Exception):
        """As JAX names it."""

    with pytest.raises(JaxRuntimeError), place_told():
        raise JaxRuntimeError("out of memory")


def test_an_error_in_which_a_library_was_called_names_the_line_that_called_it() -> None:
    with pytest.raises(UserError, match=r"JSONDecodeError: .* \(test_errors\.py:\d+\)$"), place_told():
        json.loads("{")
