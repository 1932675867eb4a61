"""What the loop that predicts and the thread that answers the server exchange.

The loop publishes a snapshot of its state after every batch. Adapters are pure functions, so the snapshot is a
reference and not a copy, and the other thread may use it for any length of time. A download waits until the loop is
between two batches. Neither side holds the lock for longer than an assignment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from torch import Tensor

from fedctta.core.clients import Client
from fedctta.core.network import Tensors


class Snapshot(NamedTuple):
    """What a device holds after `batches` batches: its client, and the last one's images x[B, ...]."""

    client: Client
    x: Tensor | None
    batches: int


class Download(NamedTuple):
    """What the server sent: tensors by name, in which round of which run."""

    own: Tensors
    round: int
    run: str = ""


class Handover:
    """The latest moment in one direction, the latest download in the other."""

    def __init__(self, moment: Snapshot) -> None:
        self._changed = threading.Condition()
        self._moment = moment
        self._download: Download | None = None
        self.ended = False

    @property
    def moment(self) -> Snapshot:
        """The latest one."""
        return self._moment

    def publish(self, moment: Snapshot) -> None:
        """Show what the device holds now."""
        with self._changed:
            self._moment = moment
            self._changed.notify_all()

    def deliver(self, download: Download) -> None:
        """Leave a download for the loop; a newer one replaces an older one."""
        with self._changed:
            self._download = download
            self._changed.notify_all()

    def take(self) -> Download | None:
        """Return the download that waits, if there is one. Never waits itself."""
        if self._download is None:
            return None
        with self._changed:
            download, self._download = self._download, None
            return download

    def wait_for_download(self, stopped: Callable[[], bool], tick: float = 0.2) -> Download | None:
        """Wait, in lock-step, for the server's answer; None if the device is to stop."""
        while not stopped():
            with self._changed:
                self._changed.wait_for(lambda: self._download is not None, tick)
            if self._download is not None:
                return self.take()
        return None

    def wait_for_moment(self, after: int, timeout: float) -> bool:
        """Wait until more than `after` batches are adapted to, or the data end; return whether that came in time."""
        deadline = monotonic() + timeout
        with self._changed:
            return self._changed.wait_for(lambda: self._moment.batches > after or self.ended, deadline - monotonic())

    def end(self) -> None:
        """Say that no more batches will come."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
