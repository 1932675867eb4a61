"""Files of one's own by name."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.own import load_own
from fedctta.errors import UserError


@pytest.fixture
def place(tmp_path):
    for name, count in {"a": 2, "b": 3}.items():
        np.savez(tmp_path / f"{name}.npz", images=np.zeros((count, 4, 4, 3), np.uint8), labels=np.arange(count))
    return tmp_path


def test_domains_can_be_chosen(place):
    assert load_own("arrays", folder=place).names == ("a", "b")
    data = load_own("arrays", "b", place)
    assert (data.names, data.sizes, len(data.classes)) == (("b",), (3,), 3)
    with pytest.raises(UserError, match="unknown domain 'c'"):
        load_own("arrays", "c", place)


@pytest.mark.parametrize("name", ["arrays", "folders"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"folder": None}, "needs your files: add folder=PATH"),
        ({"severity": 3}, "severity=3 has no effect"),
        ({"layout": "sites"}, "layout=sites has no effect"),
    ],
)
def test_words_without_effect_are_refused(place, name, words, said):
    with pytest.raises(UserError, match=said):
        load_own(name, **{"folder": place, **words})


def test_arrays_are_not_resized(place):
    with pytest.raises(UserError, match="size=4 has no effect on arrays"):
        load_own("arrays", folder=place, size=4)
