"""What is asked for of a data set."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.asked import SEVERITY, choose, refuse_idle
from fedctta.data.domains import Domains
from fedctta.data.masked import MaskedDomains
from fedctta.errors import UserError
from fedctta.keys import DEFAULTS

IMAGES = {name: np.full((3, 2, 2, 3), k, np.uint8) for k, name in enumerate("abc")}
LABELS = np.arange(3)


@pytest.mark.parametrize(
    "data",
    [
        Domains(("a", "b", "c"), IMAGES, LABELS, ("x", "y", "z")),
        Domains(("a", "b", "c"), IMAGES, {"a": LABELS, "b": None}, ("x", "y", "z")),
        MaskedDomains(("a", "b", "c"), IMAGES, {n: i[..., 0] for n, i in IMAGES.items()}, ("x", "y", "z"), ()),
    ],
)
def test_some_domains_are_chosen_in_the_order_asked(data):
    some = choose(data, "c+a")
    assert (some.names, list(some.images), some.classes) == (("c", "a"), ["c", "a"], data.classes)
    for name in some.names:
        assert some.images[name] is data.images[name]
        assert np.array_equal(some.labels_of(name), data.labels_of(name))
    assert choose(data, "benchmark") is choose(data, "all") is data
    with pytest.raises(UserError, match="unknown domain 'd'"):
        choose(data, "a+d")
    with pytest.raises(UserError, match="names a twice"):
        choose(data, "a+a")


def test_keys_without_effect_are_refused():
    refuse_idle("this", severity=SEVERITY, folder=None, layout="auto", size=None)
    assert DEFAULTS["severity"] == SEVERITY
    with pytest.raises(UserError, match="layout=sites has no effect on this: drop the key"):
        refuse_idle("this", severity=SEVERITY, layout="sites")
