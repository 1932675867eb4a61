"""What a request from outside may cost at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Numbers of connections, and bytes, and seconds. Flower cuts arrays into pieces of less than `body_bytes`."""

    strangers: int = 256
    strangers_per_address: int = 32
    connections: int = 2048
    head_bytes: int = 16 << 10
    head_seconds: float = 10.0
    idle_seconds: float = 75.0
    body_bytes: int = 64 << 20
    held_bytes: int = 256 << 20
    held_per_sender: int = 128 << 20
    slack_seconds: float = 10.0
    least_speed: float = 256 << 10  # bytes a second

    def seconds_for(self, size: int) -> float:
        """Return how long so many bytes may take."""
        return self.slack_seconds + size / self.least_speed
