from __future__ import annotations

import pytest

from fedctta.adapters import adapters
from fedctta.errors import UserError
from fedctta.fleet.methods import choose_methods, refuse_lockstep


@pytest.mark.parametrize(
    ("given", "lockstep", "wanted"),
    [
        ({}, False, ("recall", "recall")),
        ({}, True, ("bn", "fedctta")),
        ({"adapter": "recall"}, False, ("recall", "recall")),
        ({"aggregator": "recall"}, False, ("recall", "recall")),
        ({"adapter": "tent"}, False, ("tent", "fedctta")),
        ({"aggregator": "kin"}, False, ("bn", "kin")),
        ({"adapter": "recall"}, True, ("recall", "fedctta")),
    ],
)
def test_methods_that_are_not_named_go_with_those_that_are(given, lockstep, wanted):
    chosen = choose_methods({**given, "slots": 2}, lockstep)
    assert (chosen["adapter"], chosen["aggregator"], chosen["slots"]) == (*wanted, 2)


def test_who_never_waits_is_not_in_lock_step():
    refuse_lockstep(adapters.create("bn"))
    with pytest.raises(UserError, match=r"'recall' predicts without waiting for its server.* drop lockstep"):
        refuse_lockstep(adapters.create("recall"))
