"""A certificate's end is said in its last 30 days and afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedctta.fleet.expiry import tell_end


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (31, None),
        (29, "server.crt ends in 29 days, on "),
        (0, "server.crt ends in 0 days"),
        (-1, "server.crt ended on "),
    ],
)
def test_the_end_is_said_in_time(days, said):
    told = tell_end(Path("server.crt"), datetime.now(UTC) + timedelta(days=days, hours=1))
    assert (told is None) if said is None else (told.startswith(said) and "--renew" in told)
