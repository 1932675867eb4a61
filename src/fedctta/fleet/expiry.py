"""When a certificate ends, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

SOON = 30  # days before its end from which one is reminded
RENEW = (
    "renew it with `fedctta fleet keys --out FOLDER --renew` where ca.key is, and copy the new certificates to where"
    " the old ones are"
)


def days_left(until: datetime) -> int:
    """Return the whole days that a certificate is valid for; negative once it has ended."""
    return (until - datetime.now(UTC)).days


def tell_end(certificate: Path, until: datetime) -> str | None:
    """Return what to say of a certificate that ends soon or has ended; nothing of others."""
    left = days_left(until)
    if left >= SOON:
        return None
    when = f"ends in {left} days, on" if left >= 0 else "ended on"
    return f"{certificate} {when} {until:%Y-%m-%d}: {RENEW}"
