"""A name that does not exist is answered with those that do."""

from __future__ import annotations

import doctest

from fedctta import errors
from fedctta.errors import UserError, unknown


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(errors) == (0, 3)


def test_a_near_name_is_offered_before_the_rest():
    error = unknown("dataset", "cifar10c", ["shapes-c", "cifar10-c"])
    assert isinstance(error, UserError)
    assert str(error) == "unknown dataset 'cifar10c': did you mean cifar10-c? (all: cifar10-c, shapes-c)"


def test_several_near_names_come_nearest_first_and_at_most_three():
    error = str(unknown("key", "seeds", ["seed", "seedy", "sees", "seeded", "weeds"]))
    assert "did you mean sees or seed or weeds?" in error


def test_without_a_near_name_all_are_listed_in_order():
    assert str(unknown("adapter", "xyz", ("grad", "bn"))) == "unknown adapter 'xyz': use one of bn, grad"


def test_where_nothing_exists_the_message_does_not_trail_off():
    assert str(unknown("preset", "xyz", [])) == "unknown preset 'xyz': there is none to choose from"
