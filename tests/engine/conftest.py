"""What several tests of whole streams need."""

from __future__ import annotations

import pytest

from fedctta.engine.rounds import State


class Last:
    """A witness of a run that keeps the state after the last round that was played."""

    state: State

    def measure(self, federation, state, t):
        self.state = state

    def tensors(self):
        return {}

    def restore(self, saved, path):
        pass


@pytest.fixture
def witness():
    """Give the class of witnesses."""
    return Last
