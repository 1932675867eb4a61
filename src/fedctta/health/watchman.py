"""One client's watchman: what it has seen of the client, when it checks, and what it decides (see `guard`).

It lives on the host, where decisions are made. The logits of a run's clients reach it on the CPU; those of a device on
its own are where its network is.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fedctta.health.guard import Guard, does_harm, is_calm, is_due, is_healthy, is_turn
from fedctta.health.signals import Alarm, Signals, Views, compare, first_signals, forget_checks, look, watch

HALF = 64  # images of a batch of which a calm check shows the source model every second one

Verdict = Literal["remember", "return", "go on"]
"""What becomes of the client: its state is a healthy one, it goes back to its last healthy one, or neither."""


class Watchman:
    """Watches one client and checks one of `every` batches; 0: none."""

    def __init__(self, every: int, guard: Guard) -> None:
        self.every, self.guard = every, guard
        self.signals: Signals | None = None
        self.alarms: tuple[Alarm, ...] = ()
        self.resting = False  # the source model answers

    @property
    def frozen(self) -> bool:
        """Whether the client does not adapt any more."""
        return self.resting and self.guard == "freeze"

    def is_due(self) -> bool:
        """Whether the next batch is checked; a client that rests adapts to it only then, as a try."""
        return not self.frozen and is_due(self.signals or first_signals(1), self.every, self.alarms, self.resting)

    def stride(self, images: int, dense: bool) -> int:
        """Return how many images of a batch there are to every one that a check shows to the source model."""
        calm = self.signals is not None and is_calm(self.signals)
        return 2 if images >= HALF and calm and not dense else 1

    def looks(self) -> bool:
        """Whether the source model alone is checked on the next batch, which it answers."""
        return bool(self.every) and self.resting and self.signals is not None and is_turn(self.signals, self.every)

    def look(self, source: Views) -> None:
        """Note a check of the source model alone."""
        assert self.signals is not None
        self.signals = look(self.signals, source)

    def watch(self, logits: Tensor) -> None:
        """Note the answer to a batch, logits[B, K]."""
        self.signals = watch(self._known(logits), logits)

    def compare(self, adapted: Views, source: Views, rows: Tensor, calibrated: bool) -> None:
        """Note a check; the source model was shown the images in `rows`."""
        self.signals = compare(self._known(adapted.plain), adapted, source, rows, calibrated)

    def judge(self) -> Verdict:
        """Raise an alarm if adapting does harm, or end its consequences."""
        assert self.signals is not None
        if is_healthy(self.signals):
            self.resting = False
            return "remember"
        if self.resting:
            return "return"  # the next try begins there too
        if not does_harm(self.signals):
            return "go on"
        adapted, source = self.signals.estimate / self.signals.images, self.signals.source / self.signals.shown
        self.alarms += (Alarm(int(self.signals.batches), float(adapted), float(source)),)
        self.signals = forget_checks(self.signals)
        self.resting = self.guard != "off"
        return "return" if self.resting else "go on"

    def _known(self, logits: Tensor) -> Signals:
        return self.signals or first_signals(logits.shape[-1], logits.device)
