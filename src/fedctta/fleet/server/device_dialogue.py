"""The messages between the server and its devices: hellos, questions, uploads, and refused uploads.

A device that has nothing, or fails, is asked again a little later. A refused upload is logged with its node and reason,
and has no weight.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedctta.fleet.agreement import difference, disagreement
from fedctta.fleet.device.health_report import health_in
from fedctta.fleet.server.bindings import Bindings
from fedctta.fleet.server.collaboration import Upload
from fedctta.fleet.server.examine import Examiner, UploadRefused
from fedctta.fleet.server.ledger import Ledger, ServerProgress
from fedctta.fleet.server.plan import Plan
from fedctta.fleet.server.roster import Roster
from fedctta.fleet.transport import wire
from fedctta.fleet.transport.flower_messages import HELLO, STEP, Answer, Questions

log = logging.getLogger("fedctta.fleet")

Write = Callable[[int, bool], dict[str, NDArray[Any]]]
"""Gives what the device of a row is sent, with or without its model."""

FACTS = ("version", "model")
FRESH = 3  # rounds after which a model is no longer sent to a device that went on by itself


class DeviceDialogue:
    """The messages of one server. `uploads` are by row; this round waits neither for `answered` nor for `idle` nodes.

    Those that have `answered` are not asked again in this round; `idle` ones, which had nothing or failed, are.
    """

    def __init__(
        self, plan: Plan, examiner: Examiner, post: Questions, ledger: Ledger, place: ServerProgress, method: wire.Note
    ) -> None:
        self.plan, self.examiner, self.post, self.ledger, self.place = plan, examiner, post, ledger, place
        self.roster = Roster(plan.max_devices, plan.quarantine, plan.quarantine_rounds, place.names)
        self.roster.refused, self.roster.free_again = place.refused, place.free_again
        self.roster.refused_in_a_row = place.refused_in_a_row
        self.bindings = Bindings(Path(plan.state))
        self.uploads: dict[int, Upload] = {}
        self.answered: set[int] = set()
        self.idle: set[int] = set()
        self.hellos: dict[int, str] = {}
        self.health: dict[int, wire.Note] = {}  # what devices last told, by row
        self.facts: dict[str, dict[str, str]] = {}  # what devices said of themselves, by name
        self.silence: dict[int, str] = {}  # why a node has not said who it is
        self.unanswered: dict[int, str] = {}  # why a node's device does not answer
        self.last_round: dict[int, int] = {}  # of the last upload that was used, by row
        self._asked: dict[int, int] = {}  # the round of a node's last question
        self._not_before: dict[int, float] = {}
        self._told: wire.Note = {**method, **examiner.terms, "min_batch": plan.experiment.min_batch}  # in all questions

    def turn(self) -> None:
        """Begin a new round: forget the uploads of the last one."""
        self.uploads, self.answered, self.idle = {}, set(), set()

    def invite(self, online: set[int]) -> None:
        """Ask nodes that are not known yet who they are; forget those whose key is no longer let in."""
        for node in [node for node in self.roster.nodes if not self.bindings.allows(node)]:
            log.warning("%s is put out: its key is no longer let in", self._name(node))
            self.ledger.put_out(self.place.round, node, self._name(node))
            del self.roster.nodes[node]
        online = {node for node in online if self.bindings.allows(node)}
        for node in sorted(online - self.roster.nodes.keys() - self.hellos.keys() - self.post.busy()):
            if self._due(node) and not self.ignored(node):
                self.post.ask(node, HELLO, wire.Parcel("hello", self.place.round, self._told))

    def admit(self, online: set[int]) -> set[int]:
        """Give those who said hello their rows; return the rows."""
        hellos, self.hellos = self.hellos, {}
        turned_away = self.roster.admit(hellos, online)
        for node, reason in turned_away.items():
            self._refuse(node, reason)
        for node in sorted(hellos.keys() - turned_away.keys(), key=hellos.__getitem__):
            self._note_admission(node, hellos[node])
        return {self.roster.nodes[node] for node in hellos.keys() - turned_away.keys()}

    def ask(self, nodes: set[int], write: Write, ask: int = 1) -> None:
        """Send idle devices their rows, if they have not got them yet, and ask for their uploads."""
        for node in sorted(nodes - self.post.busy() - self.answered, key=self.roster.nodes.__getitem__):
            if self._due(node):
                self._ask(node, write, ask)

    def late(self) -> set[int]:
        """Return the nodes that have yet to answer a question of an earlier round."""
        return {node for node in self.post.busy() if self._asked.get(node, self.place.round) < self.place.round}

    def listen(self) -> bool:
        """Handle the answers that have arrived; return whether there were any."""
        answers = self.post.collect()
        for answer in answers:
            self._heed(answer)
        return bool(answers)

    def ignored(self, node: int) -> bool:
        """Whether a node is in quarantine."""
        return self.roster.ignored(self._name(node) or f"node {node}", self.place.round)

    def _ask(self, node: int, write: Write, ask: int) -> None:
        row, round_ = self.roster.nodes[node], self.place.round
        carried = self.place.owed.get(row)
        if carried is not None and not self.plan.lockstep and round_ - carried > FRESH:
            del self.place.owed[row]
            carried = None
        arrays = write(row, carried is not None)
        nonce, self._asked[node] = secrets.token_hex(8), round_
        note: wire.Note = {**self._told, "ask": ask, "nonce": nonce}
        note |= {} if carried is None else {"download": carried}
        self.place.bytes_down += self.post.ask(node, STEP, wire.Parcel("step", round_, note, arrays), nonce, carried)

    def _heed(self, answer: Answer) -> None:
        question, node = answer.question, answer.question.node
        if answer.flat is None:
            if answer.unreadable:
                self.answered.add(node)
                self._refuse(node, UploadRefused(answer.error))
            else:
                self._pass_over(node, answer.error)
            return
        self.place.bytes_up += answer.flat.nbytes
        row = self.roster.nodes.get(node)
        try:
            if not self.bindings.allows(node):
                raise UploadRefused("its key is no longer let in")
            parcel = self.examiner.open(answer.flat)
            if "device" in parcel.note:
                self.unanswered.pop(node, None)
            elif parcel.kind == "nothing":  # the node answers in its device's place
                self.unanswered[node] = f"{parcel.note.get('reason', '')!s:.200}"
            if row is not None:
                self._believe(node, str(parcel.note.get("device", self.roster.names[row])))
            idle = parcel.kind in ("nothing", "refused")
            if question.kind == STEP and (not idle or "weights" in parcel.note):  # the ClientApp knows of no terms
                self._compare(parcel.note)
            if row is not None and (told := health_in(parcel.note)):
                self._note_health(row, told)
            if row is not None and _received(parcel) and self.place.owed.get(row, -1) == question.carried:
                del self.place.owed[row]
            if parcel.kind == "refused" and question.kind == HELLO:
                raise UploadRefused(f"{parcel.note.get('reason', 'it gives no reason')!s:.300}")
            if idle:
                self._pass_over(node, str(parcel.note.get("reason", "")))
            elif question.kind == HELLO:
                self.hellos[node] = name = self._believe(node, self.examiner.hello(parcel))
                self._note_facts(name, parcel.note)
            elif row is not None:
                upload = self.examiner.upload(parcel, question.round, question.nonce)
                self.answered.add(node)
                self._note_facts(self.roster.names[row], parcel.note)
                self.roster.accept(self.roster.names[row])
                self.uploads[row] = replace(upload, age=self.place.round - question.round)
                self.last_round[row] = self.place.round
                self.silence.pop(node, None)
        except UploadRefused as reason:
            self.answered.add(node)
            self._refuse(node, reason)
        except Exception as error:  # nothing that a device says may end the server
            log.exception("the answer of node %d cannot be examined", node)
            self.answered.add(node)
            self._refuse(node, UploadRefused(f"it cannot be examined ({type(error).__name__})"))

    def _believe(self, node: int, name: str) -> str:
        """Return the name that a device says, if its key may say it."""
        bound = self.bindings.name_of(node)
        if bound is not None and bound != name:
            raise UploadRefused(
                f"the key of {bound!r} says that it is {name!r:.100}: start the device with --name {bound}"
            )
        return name

    def _compare(self, note: wire.Note) -> None:
        """Refuse a device that has something else: it may have been started anew since its node's hello."""
        if reason := disagreement(note, self.examiner.terms):
            raise UploadRefused(reason)

    def _note_facts(self, name: str, note: wire.Note) -> None:
        """Remember what a device says of its software; log once what differs and does no harm."""
        known, told = self.facts.get(name, {}), facts_in(note)
        if known.get("version") != told.get("version") and (harmless := difference(note, self.examiner.terms)):
            log.warning("%s takes part: %s", name, harmless)
        self.facts[name] = {**known, **told}

    def _note_admission(self, node: int, name: str) -> None:
        self.silence.pop(node, None)
        facts = self.facts.get(name, {})
        self.ledger.admit(self.place.round, node, name, facts)
        log.info("%s joined (node %d%s)", name, node, "".join(f", {key} {value}" for key, value in facts.items()))

    def _note_health(self, row: int, told: wire.Note) -> None:
        """Remember how a device fares; log when it has raised an alarm."""
        if told.get("alarms", 0) > self.health.get(row, told).get("alarms", 0):  # type: ignore[operator]
            log.warning("%s has raised an alarm: adapting does harm there", self.roster.names[row])
        self.health[row] = told

    def _pass_over(self, node: int, reason: str) -> None:
        """Continue without a device that has nothing or failed; in lock-step, wait for it until the deadline."""
        before, self.silence[node] = self.silence.get(node), f"has nothing: {reason:.200}"
        asked = self.place.round < self.plan.rounds
        if asked and self.silence[node] != before:  # once, though it is asked again and again
            log.info("%s %s", self._name(node) or f"node {node}", self.silence[node])
        self._not_before[node] = time.monotonic() + self.plan.retry
        if not self.plan.lockstep:
            self.idle.add(node)

    def _refuse(self, node: int, reason: UploadRefused) -> None:
        name = self._name(node)
        quarantined = self.roster.refuse(name or f"node {node}", self.place.round)
        self._not_before[node] = time.monotonic() + self.plan.retry
        self.ledger.refuse(self.place.round, node, name, str(reason), quarantined)
        self.silence[node] = f"was refused: {reason!s:.200}"
        log.warning("refused node %d (%s): %s%s", node, name, reason, "; in quarantine" if quarantined else "")

    def _name(self, node: int) -> str | None:
        row = self.roster.nodes.get(node)
        return self.bindings.name_of(node) if row is None else self.roster.names[row]

    def _due(self, node: int) -> bool:
        return time.monotonic() >= self._not_before.get(node, 0)


def facts_in(note: wire.Note) -> dict[str, str]:
    """Return what a device said of its software, as far as it can be shown: a device may tell anything."""
    told = {name: note.get(name) for name in FACTS}
    return {name: value for name, value in told.items() if isinstance(value, str) and _is_short(value)}


def _is_short(text: str) -> bool:
    return 0 < len(text) <= 100 and text.isprintable()


def _received(parcel: wire.Parcel) -> bool:
    """Whether the device has got the model sent with the question: the ClientApp answers for a device out of reach."""
    return parcel.kind != "nothing" or parcel.note.get("received") == 1
