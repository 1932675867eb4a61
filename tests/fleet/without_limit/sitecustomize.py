"""Loaded by every Python whose path begins with this folder: takes the limit from what a ClientApp carries."""

from fedctta.fleet.transport import framing

framing.exchange.__defaults__ = (1 << 40,)
