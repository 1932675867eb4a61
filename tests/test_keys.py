"""Keys say of themselves what the settings do with them."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from fedctta.errors import UserError
from fedctta.keys import ABOUT, ALLOWED, DEFAULTS, KEYS, LARGEST_SEED, LEAST_DELTA, LEAST_EPSILON, LIMITS
from fedctta.runs.settings import Experiment, single


def test_an_experiment_has_exactly_these_keys_and_defaults():
    assert [field.name for field in fields(Experiment)] == [*KEYS, "parameters"]
    assert {field.name: field.default for field in fields(Experiment)[:-1]} == DEFAULTS
    assert single({}) == Experiment(**DEFAULTS)


def test_every_default_is_a_value_the_key_takes():
    for key, value in DEFAULTS.items():
        assert single({key: value}) == single({key: str(value)}) == Experiment()


def test_every_key_has_one_short_line():
    assert list(ABOUT) == list(KEYS)
    for line in ABOUT.values():
        assert line.endswith(".")
        assert "\n" not in line
        assert len(line) <= 80


@pytest.mark.parametrize("key", LIMITS)
def test_limits_are_those_that_are_checked(key):
    least, most = LIMITS[key].least, LIMITS[key].most
    number = int if int in (KEYS[key], *getattr(KEYS[key], "__args__", ())) else float
    assert getattr(single({key: number(least)}), key) == least
    with pytest.raises(UserError, match=f"{key}=.* must (be at least|not be|lie between)"):
        single({key: least - 1})
    if most < math.inf:
        assert getattr(single({key: number(most)}), key) == most
        with pytest.raises(UserError, match=f"{key}=.* must lie between"):
            single({key: most + (1 if number is int else 1e-9)})


def above(value):
    return math.nextafter(value, math.inf)


@pytest.mark.parametrize(
    ("key", "words", "good", "bad"),
    [
        ("cap", "above 0, up to 1", [above(0), 1.0], [0.0, above(1)]),
        ("clip", "above 0", [above(0), 1e9], [0.0]),
        ("trim", "from 0 to below 0.5", [0.0, math.nextafter(0.5, 0)], [-above(0), 0.5]),
        ("epsilon", f"from {LEAST_EPSILON} on", [LEAST_EPSILON, 1e9], [math.nextafter(LEAST_EPSILON, 0)]),
        ("delta", f"from {LEAST_DELTA} to below 1", [LEAST_DELTA, math.nextafter(1, 0)], [LEAST_DELTA / 10, 1.0]),
        ("seed", f"from 0 to {LARGEST_SEED}", [0, LARGEST_SEED], [-1, LARGEST_SEED + 1]),
    ],
)
def test_limits_in_words_are_true(key, words, good, bad):
    assert words in ALLOWED[key]
    for value in good:
        assert getattr(single({key: value}), key) == value
    for value in bad:
        with pytest.raises(UserError, match=f"{key}="):
            single({key: value})
