from __future__ import annotations

import pytest

from fedctta.fleet.transport.limits import Limits


def test_a_body_must_come_at_a_least_speed():
    limits = Limits(slack_seconds=2.0, least_speed=100.0)
    assert limits.seconds_for(0) == 2.0
    assert limits.seconds_for(1000) == 12.0


def test_bounds_fit_into_each_other():
    limits = Limits()
    assert limits.body_bytes <= limits.held_per_sender <= limits.held_bytes
    assert limits.strangers_per_address <= limits.strangers <= limits.connections
    assert limits.seconds_for(limits.body_bytes) == pytest.approx(266)
