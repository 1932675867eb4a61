"""Stages of uploads: one signature, and none of them changes what it was given."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.uploads.attacks import Liars
from fedctta.uploads.late_uploads import Late
from fedctta.uploads.robust import Robust
from fedctta.uploads.stages import Transit

SERVER = SimpleNamespace(network=SimpleNamespace(state={"a": torch.zeros(2)}), clients=3, seed=0)


def transit():
    own = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, torch.nan]])}
    active = torch.ones(3, dtype=torch.bool)
    return Transit(0, Uploads(own, {}, active), active, active, delay=torch.tensor([0, 2, 0]))


@pytest.mark.parametrize(
    ("stage", "receive"),
    [
        (Liars((0,), "scale"), [False, True, True]),
        (Late(), [True, False, True]),
        (Robust("check"), [True, True, False]),
    ],
)
def test_a_stage_is_pure_and_says_who_still_receives(stage, receive):
    given, before = transit(), transit()
    after = stage.handle(SERVER, given)
    assert after.receive.tolist() == receive
    assert given.receive is given.active
    assert given.post == {}
    torch.testing.assert_close(given.uploads.own["a"], before.uploads.own["a"], equal_nan=True)


def test_stages_add_up():
    now = transit()
    for stage in (Liars((0,), "sign"), Late(), Robust("check")):
        now = stage.handle(SERVER, now)
    assert now.receive.tolist() == [False, False, False]
    assert now.uploads.active.tolist() == [
        True,
        False,
        False,
    ]  # the liar's upload, which could be true, is all there is
    assert now.uploads.own["a"][0].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("stage", [Late(), Robust()])
def test_what_does_not_apply_returns_the_transit_as_it_is(stage):
    now = transit()._replace(delay=None)
    assert stage.handle(SERVER, now) is now
