"""A device: a long-lived process that adapts to its images and predicts them, alone or in a fleet.

A device handles every batch completely before it begins the next one:

    take a download, if one waits -> adapt and predict -> write -> publish a snapshot -> save, if it is time

What adapts and predicts is `online.adaptation.Adaptation`, as in `fedctta.adapt`: a batch that would spoil the model
changes nothing, small batches are seen among the last images, and a guard watches that adapting does no harm.

In lock-step, the device waits for the download that answers a batch after adapting to it and before predicting it, as
in a simulation. Alone, or free-running, it waits only for images; adaptation to the next batch starts from the
download, so a download has an effect for as long as the adapter remembers.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import sleep, time
from types import FrameType

import torch
from torch import Tensor

from fedctta.core.clients import Client
from fedctta.engine.rounds import take_up
from fedctta.errors import UserError
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import Equipment
from fedctta.fleet.device.handover import Download, Handover, Snapshot
from fedctta.fleet.device.predictions import Predictions, Row
from fedctta.fleet.device.sources import Batch, Source
from fedctta.keys import UNWAITING
from fedctta.models.inputs import to_input
from fedctta.models.try_on import refuse_regression, try_on
from fedctta.online.adaptation import Adaptation

log = logging.getLogger("fedctta.fleet")

IDLE = 0.1  # seconds of rest when there is nothing to do
CONSEQUENCES = {
    "reset": "the source model answers until adapting helps again",
    "freeze": "the source model answers from now on; --guard reset lets the device try again",
    "off": "it goes on, as --guard off says",
}


@dataclass
class Stop:
    """Whether the device has been asked to stop, and whether it only waits for images."""

    asked: bool = False
    waiting: bool = False


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let SIGINT and SIGTERM end the device after the current batch, or at once if it waits."""
    stop = Stop()

    def note(signum: int, frame: FrameType | None) -> None:
        again, stop.asked = stop.asked, True
        if stop.waiting or again:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals go elsewhere
        yield stop
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopped(Exception):
    """The device is to stop while it waits for the server."""


class Device:
    """Runs one client on the batches of a source."""

    def __init__(
        self,
        equipment: Equipment,
        adaptation: Adaptation,
        place: StreamPosition,
        predictions: Predictions,
        keep: DeviceState,
        handover: Handover,
        lockstep: bool = False,
    ) -> None:
        self.network, self.adapter, self.classes = equipment.network, equipment.adapter, equipment.classes
        self.adaptation, self.place, self.predictions, self.keep = adaptation, place, predictions, keep
        self.handover, self.lockstep = handover, lockstep
        self._tried = self._compared = False

    @property
    def client(self) -> Client:
        """The client as it is now."""
        return self.adaptation.client

    def walk(self, source: Source, stop: Stop) -> None:
        """Predict all batches, until the source ends or a stop is asked for; then save."""
        try:
            with torch.no_grad():
                for batch in self._batches(source, stop):
                    self.predict(batch, stop)
        except KeyboardInterrupt:
            pass
        finally:
            self.handover.end()
        self.keep.save(self.adaptation, self.place)

    def _batches(self, source: Source, stop: Stop) -> Iterator[Batch]:
        while True:
            stop.waiting = True
            if stop.asked:
                return
            try:
                batch = next(source, False)
            except UserError:  # of the source; the model is as it was after the last prediction
                self.keep.save(self.adaptation, self.place)
                raise
            if batch is None:
                self.keep.offer(self.adaptation, self.place)
                sleep(IDLE)
            stop.waiting = False
            if batch is False:
                return
            if isinstance(batch, Batch):
                yield batch

    def predict(self, batch: Batch, stop: Stop) -> None:
        """Adapt to one batch, predict it, and write the predictions down."""
        x = to_input(batch.images, self.network.device)
        if not self._tried:
            self._check_outputs(try_on(self.network, x))
            self.adapter.check_images(self.network, x)
            self._tried = True
        number, alarms = self.place.batches, len(self.adaptation.watchman.alarms)
        try:
            logits = self._answer_in_lockstep(x, stop) if self.lockstep else self._answer(x)
        except Stopped:  # a batch without its answer is not predicted, but read again later
            return
        self.predictions.append(self._rows(batch, logits, number))
        images, size = self.place.images + len(x), tuple(batch.images.shape[1:])
        self.place = replace(self.place, batches=number + 1, images=images, size=size)
        for alarm in self.adaptation.watchman.alarms[alarms:]:
            log.warning("alarm at %s; %s", alarm, CONSEQUENCES[self.adaptation.watchman.guard])
        if not self.lockstep:
            self.handover.publish(Snapshot(self.client, self._last_batch, number + 1))
        self.keep.offer(self.adaptation, self.place)

    @property
    def _last_batch(self) -> Tensor | None:
        """The images that the device last adapted to."""
        return self.adaptation.seen if isinstance(self.adaptation.seen, Tensor) else None

    def _answer(self, x: Tensor) -> Tensor:
        """Start from the download, if one waits; return the logits."""
        download, before, batches = self.handover.take(), self.client, self.adaptation.batches
        if download is not None:
            self.adaptation.client = self._take(download, before, self._last_batch)
        logits = self.adaptation.answer(x)
        if download is not None and self.adapter.waits and not self._compared and self.adaptation.batches > batches:
            self._compare(before)
        return logits

    def _answer_in_lockstep(self, x: Tensor, stop: Stop) -> Tensor:
        """Return the logits after the server's answer; after one that changes nothing here, if nothing was learnt."""
        number, answered = self.place.batches, False

        def exchange(client: Client, seen: Tensor) -> Client:
            nonlocal answered
            self.handover.publish(Snapshot(client, seen, number + 1))
            download = self.handover.wait_for_download(lambda: stop.asked)
            if download is None:
                raise Stopped
            answered = True
            return self._take(download, client, seen)

        self.adaptation.exchange = exchange
        logits = self.adaptation.answer(x)
        if not answered:
            self.adaptation.client = exchange(self.client, x)
        return logits

    def _take(self, download: Download, client: Client, x: Tensor | None) -> Client:
        """Return the client with the server's tensors in it."""
        self.place = replace(self.place, run=download.run, round=download.round)
        if x is None and not download.own.keys() <= client.own.keys():
            return client  # what is private has meaning only after `receive`; the next download brings it again
        client = take_up(client, download.own)
        if self.adapter.receives and x is not None:
            client = self.adapter.receive(self.network, client, x)
        return client

    def _compare(self, before: Client) -> None:
        """Log once if adapting to a batch erases what the server sent, as `bn` with momentum 1 does."""
        self._compared = True
        assert self._last_batch is not None
        alone = self.adapter.adapt(self.network, before, self._last_batch)
        if all(torch.equal(tensor, alone.own[name]) for name, tensor in self.client.own.items()):
            log.warning(
                "adapter %s begins anew with every batch, so that a free-running device gains nothing from its server:"
                " use --adapter %s, parameters that remember, or --lockstep",
                self.adapter.name,
                UNWAITING,
            )

    def _rows(self, batch: Batch, logits: Tensor, number: int) -> list[Row]:
        if not bool(logits.isfinite().all()):
            raise UserError(
                f"the model's outputs for batch {number} are not finite: use a gentler --adapter (or its parameters),"
                " and another --state if it happens again"
            )
        confidence, classes = (t.tolist() for t in logits.softmax(-1).max(-1))
        now, rows = round(time(), 3), []
        for k, (name, index) in enumerate(zip(batch.ids, classes, strict=True)):
            row: Row = {"id": name, "class": index, "name": self.classes[index] if self.classes else None}
            row |= {"confidence": round(confidence[k], 6), "batch": number, "time": now}
            rows.append(row if batch.labels is None else {**row, "label": batch.labels[k]})
        return rows

    def _check_outputs(self, logits: Tensor) -> None:
        """Refuse a model that gives no class, or other classes than were named, before anything is written."""
        refuse_regression(logits)
        if logits.ndim != 2 or (self.classes and logits.shape[1] != len(self.classes)):
            raise UserError(
                f"the model gives outputs of shape {list(logits.shape[1:])}, not {len(self.classes) or 'any'} classes:"
                " check --model and --classes"
            )
