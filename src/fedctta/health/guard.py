"""Whether adapting does harm, and who answers then.

With d the gain in mirror agreement over the source model (see `health`), m its mean over the last checks and e the
standard error of m, a device raises an alarm where

    m + 3 e < -0.02

From then on the source model answers. With guard="reset" the device goes back to its last healthy state and rests for
`check` batches (10), twice as long after every further alarm, up to 64 times as long. Then it tries from there on every
check, unseen: it adapts to the batch and is compared, and it answers again when m >= -0.02. With guard="freeze" the
source model answers until `unfreeze` is called. With guard="off" an alarm is recorded and nothing else happens.

The first batches are all checked, then one of 10, and all while m + e < -0.02 and the adapted model answers. A calm
check shows the source model every second image of a large batch, the others show it all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedctta.health.signals import Alarm, Signals, gain

Guard = Literal["reset", "freeze", "off"]

MARGIN = 0.02
CERTAIN, SUSPICIOUS = 3.0, 1.0  # standard errors
FIRST = 8  # batches that are all checked
LEAST = 24  # images that a verdict needs
DOUBLED = 6  # times that a rest is doubled


def is_due(signals: Signals, every: int, alarms: Sequence[Alarm] = (), resting: bool = False) -> bool:
    """Whether the next batch is to be checked; `every` 0: never. `resting`: the source model answers."""
    if not every:
        return False
    if resting:
        rested = int(signals.batches) - alarms[-1].batch >= every * 2 ** min(len(alarms) - 1, DOUBLED)
        return rested and is_turn(signals, every)
    return is_turn(signals, every) or not is_calm(signals)


def is_turn(signals: Signals, every: int) -> bool:
    """Whether the next batch is the one of `every` that is checked in any case."""
    return int(signals.batches) % every == 0


def is_calm(signals: Signals) -> bool:
    """Whether the first batches are over and nothing looks suspicious."""
    return bool(signals.batches >= FIRST) and not _below(signals, SUSPICIOUS)


def does_harm(signals: Signals) -> bool:
    """Whether adapting is certain to do harm."""
    return bool(signals.pairs >= LEAST) and _below(signals, CERTAIN)


def is_healthy(signals: Signals) -> bool:
    """Whether adapting seems to do no harm."""
    return bool(signals.pairs >= LEAST) and not _below(signals, 0.0)


def _below(signals: Signals, errors: float) -> bool:
    mean, error = gain(signals)
    return bool(signals.pairs > 0) and bool(mean + errors * error < -MARGIN)
