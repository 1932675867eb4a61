"""Fleets of real processes take all cores there are: one at a time, however many workers run the tests."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def alone():
    """Wait until no other test of this machine has a fleet."""
    with (Path(tempfile.gettempdir()) / "fedctta-tests-fleet.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
