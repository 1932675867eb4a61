"""Keys that would have no effect on a run."""

from __future__ import annotations

import pytest

import fedctta
from fedctta.errors import UserError


@pytest.fixture
def play(tiny_module, domains):
    """Play six rounds of three domains of 48 images."""
    few = {"stream": "iid", "clients": 2, "batch": 4, "slots": 2, "device": "cpu", "baseline": False}
    return lambda **values: fedctta.run(model=tiny_module, dataset=domains, **few, **values)


def test_a_server_that_never_answers_is_refused(play):
    with pytest.raises(UserError, match=r"interval=7 is longer than the run.* give at most 6, the number of"):
        play(aggregator=["local", "fedavg"], interval=7)
    (record,) = play(aggregator="fedavg", interval=6)
    assert record.bytes_down > 0


def test_forgetting_is_not_measured_on_more_images_than_there_are(play):
    with pytest.raises(UserError, match=r"retention=49 is more than the 48 images of a domain: give 48"):
        play(retention=49)
    (record,) = play(retention=48)
    assert len(record.retained)
