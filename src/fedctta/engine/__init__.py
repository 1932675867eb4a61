"""Rounds, whole streams of them, and what makes them fast."""
