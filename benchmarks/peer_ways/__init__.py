"""The ways in which `peers.py` plays one task."""
