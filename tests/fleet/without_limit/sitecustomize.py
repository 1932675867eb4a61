"""Loaded by every Python whose path begins with this folder: takes the limit from what a ClientApp carries."""

from fedctta.fleet import line

line.exchange.__defaults__ = (1 << 40,)
