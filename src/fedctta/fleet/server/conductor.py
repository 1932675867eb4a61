"""The server's rounds: ask, collect, close, write down; devices come, are late, leave and return.

In round t every idle device gets one message: its model of the last round it took part in, and the question for its
upload of round t. The round is closed when all have answered, or after the deadline if a quorum has; the server does
not wait again for a device that still has to answer an earlier question. A device that has nothing is asked again a
little later; a round in which nobody has anything is closed empty at the deadline. A late upload has the weight
decay^age in the round in which it arrives. The server asks nothing before the last round is on disk, so a server that
dies continues with the round it was in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from fedctta.errors import NoRoom, UserError
from fedctta.fleet.server.collaboration import Closed, Hub
from fedctta.fleet.server.device_dialogue import DeviceDialogue
from fedctta.fleet.server.examine import Examiner
from fedctta.fleet.server.ledger import Ledger
from fedctta.fleet.server.plan import Plan, method_note
from fedctta.fleet.server.reporter import Reporter
from fedctta.fleet.transport.flower_messages import Questions

log = logging.getLogger("fedctta.fleet")

STATUS = 2.0  # seconds between two looks at the status while waiting
ROOM = 5.0  # seconds between two looks for room on a full disk


def open_ledger(plan: Plan) -> Ledger:
    """Open the server's folder, which belongs to the settings it was begun with."""
    return Ledger(Path(plan.state), f"{plan.experiment.fingerprint}-{plan.max_devices}")


def check_place(plan: Plan, hub: Hub) -> None:
    """Refuse a place that cannot be continued before anything is started: damaged, of another plan, or taken."""
    if Path(plan.state).exists():
        ledger = open_ledger(plan)
        try:
            ledger.load(hub.start())
        finally:
            ledger.close()


class Conductor:
    """Leads a fleet through its rounds."""

    def __init__(
        self, plan: Plan, hub: Hub, examiner: Examiner, post: Questions, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.plan, self.hub, self.post, self._sleep = plan, hub, post, sleep
        self.ledger = open_ledger(plan)
        try:
            self.place, self.standing = self.ledger.load(hub.start())
        except UserError:
            self.ledger.close()
            raise
        method = {**method_note(hub), "run": self.place.run, "lockstep": int(plan.lockstep)}
        self.letters = DeviceDialogue(plan, examiner, post, self.ledger, self.place, method)
        self.roster = self.letters.roster
        self._heard = self._shown = time.monotonic()
        self.reporter = Reporter(plan, hub, self.ledger, self.place, self.letters)

    def lead(self) -> None:
        """Play all rounds that are left."""
        self._gather()
        while self.place.round < self.plan.rounds:
            self._play()
        self._deliver()
        self._show("finished")

    def _gather(self) -> None:
        """Wait for the devices the first round needs; after a restart, no longer than a deadline."""
        until = time.monotonic() + self.plan.deadline if self.place.round else math.inf
        said = self.letters
        while len(said.hellos) < self.plan.devices and (time.monotonic() < until or not said.hellos):
            said.invite(self.post.online())
            self._listen("waiting for devices")
        self._admit(self.post.online())

    def _play(self) -> None:
        began = time.monotonic()
        self.letters.turn()
        while True:
            online = self.post.online()
            self.letters.invite(online)
            self._admit(online)
            expected = {node for node in self.roster.nodes if not self.letters.ignored(node)}
            here = expected & online
            expected = expected if self.plan.lockstep else here  # in lock-step, wait for devices that have left as well
            self.letters.ask(here, partial(self.hub.write, self.standing))
            self._listen("collecting")
            if self._is_over(expected, time.monotonic() - began):
                break
        self._close(time.monotonic() - began)

    def _is_over(self, expected: set[int], waited: float) -> bool:
        uploads, settled = self.letters.uploads, self.letters.answered | self.letters.idle
        if waited < self.plan.pause:
            return False
        if not uploads:  # in lock-step, wait: rounds are those of a simulation
            return not self.plan.lockstep and waited >= self.plan.deadline and expected <= settled
        enough = len(uploads) >= math.ceil(self.plan.quorum * len(expected))
        punctual = expected if self.plan.lockstep else expected - self.letters.late()
        return expected <= settled or (enough and (punctual <= settled or waited >= self.plan.deadline))

    def _close(self, seconds: float) -> None:
        uploads, place, round_ = self.letters.uploads, self.place, self.place.round
        known = len(self.roster.names)
        closed = self.hub.close(self.standing, uploads) if uploads else Closed(self.standing, torch.eye(known), ())
        self.standing = closed.standing
        self.reporter.note_round(round_, len(uploads), seconds)
        if not uploads:
            place.empty_rounds += 1
            log.warning("round %d: nobody had an upload; closed empty after %.0f s", round_, seconds)
        self._write(partial(self.ledger.write_collaboration, round_, closed.weights[:known, :known], self.roster.names))
        place.owed = {**place.owed, **dict.fromkeys(closed.receivers, round_)}
        place.round += 1
        self._write(partial(self.ledger.save, place, self.standing))  # last: who dies before this plays it again
        log.info("round %d closed: %d of %d devices, %.2f s", round_, len(uploads), known, seconds)
        if unused := uploads.keys() - set(closed.receivers):  # too late for `stale`, or not plausible to `robust`
            log.warning("round %d: without weight: %s", round_, ", ".join(self.roster.names[row] for row in unused))
        self._show("running")

    def _deliver(self) -> None:
        """Send all devices the last model; ask for nothing."""
        until = time.monotonic() + self.plan.deadline
        self.letters.turn()
        while time.monotonic() < until:
            online = self.post.online()
            owed = {node for node, row in self.roster.nodes.items() if node in online and row in self.place.owed}
            if not owed and not self.post.busy():
                break
            self.letters.ask(owed, partial(self.hub.write, self.standing), ask=0)
            self._listen("delivering")
        self._write(partial(self.ledger.save, self.place, self.standing))

    def _write(self, write: Callable[[], None]) -> None:
        """Write down what no round may go on without; wait for room if the disk is full."""
        said = False
        while True:
            try:
                write()
            except NoRoom as error:
                if not said:
                    log.warning("%s; the fleet waits", error)
                said = True
                self._sleep(ROOM)
            else:
                return

    def _admit(self, online: set[int]) -> None:
        if not self.letters.hellos:
            return
        newcomers = self.letters.admit(online) - self.place.owed.keys()
        greeted = self.hub.welcome(self.standing, newcomers) if newcomers and self.place.round else None
        if greeted is not None:
            self.standing = greeted
            self.place.owed |= dict.fromkeys(newcomers, self.place.round - 1)

    def _listen(self, doing: str) -> None:
        """Handle the answers that have arrived; wait a moment if there are none."""
        heard, now = self.letters.listen(), time.monotonic()
        self.letters.uploads = self.hub.prepare(self.standing, self.letters.uploads)
        if now - self._shown > STATUS:
            self._show(doing)
        if heard:
            self._heard = now
            return
        if self.plan.patience and now - self._heard > self.plan.patience:
            raise UserError(
                f"no device has answered for {self.plan.patience:.0f} s: see the devices' logs, start again"
            )
        self._sleep(self.plan.poll)

    def _show(self, doing: str) -> None:
        self._shown = time.monotonic()
        with suppress(NoRoom):  # only people read it
            self.ledger.write_status(self.reporter.describe(doing, self.post.online(), self.standing))
