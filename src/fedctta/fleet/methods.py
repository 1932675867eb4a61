"""Which methods a fleet runs where none is named, and which cannot run in lock-step.

Devices that do not wait for their server use a method that does not wait either. In lock-step, which is for comparisons
with a simulation, the methods are those of `fedctta run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedctta.adapters import Adapter
from fedctta.errors import UserError
from fedctta.keys import UNWAITING, Keys


def choose_methods(run: Mapping[str, Any], lockstep: bool) -> dict[str, Any]:
    """Return the words of a run with an adapter and an aggregator.

    >>> choose_methods({}, lockstep=False)
    {'adapter': 'recall', 'aggregator': 'recall'}
    >>> choose_methods({"aggregator": "fedavg"}, lockstep=False)
    {'adapter': 'bn', 'aggregator': 'fedavg'}
    """
    keys = ("adapter", "aggregator")
    given = {run[key] for key in keys if key in run}
    usual = {key: UNWAITING if given <= {UNWAITING} and not lockstep else getattr(Keys, key) for key in keys}
    return {**usual, **run}


def refuse_lockstep(adapter: Adapter) -> None:
    """Refuse a method that does not wait where everyone does."""
    if not adapter.waits:
        raise UserError(
            f"adapter {adapter.name!r} predicts without waiting for its server, so that lock-step has no effect: drop"
            " lockstep, or use another adapter"
        )
