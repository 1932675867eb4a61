"""A node: takes a device's messages from the SuperLink, hands them to the device, and sends its answers back.

It does what Flower's SuperNode does, in one process. A SuperNode starts a SuperExec, which starts a ClientApp for each
message: 2 s of CPU, and a port on loopback at which any user of the machine can take a message and answer it. Here the
process that holds the key carries the message itself. It opens no port, and runs no code that a server sends: a
run's app is only asked for to see whether a trusted key has signed it, and messages of other runs are refused.

A node asks for messages every `wait_before`: soon after one has come, ever more seldom if none does.

    python -m fedctta.fleet.transport.node HOST:PORT SOCKET [CA.CRT NODE.KEY TRUSTED.YAML]
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fedctta.fleet import flower
from fedctta.fleet.transport.app_bundle import is_signed, read_trusted
from fedctta.fleet.transport.certificates import read_node_key
from fedctta.fleet.transport.client_app import app, why_silent
from fedctta.fleet.transport.flower_messages import HELLO

log = logging.getLogger("fedctta.fleet.node")

SOONEST, LATEST, SHARE = 0.2, 3.0, 0.125
FLOWER = "flwr"  # the name of its logger
UNSIGNED = 7  # Flower's code for an app that cannot be verified


def wait_before(idle: float) -> float:
    """Return the seconds to wait if no message has come for `idle` seconds: an eighth of them, from 0.2 s to 3 s.

    >>> wait_before(0.0), wait_before(8.0), wait_before(3600.0)
    (0.2, 1.0, 3.0)
    """
    return min(LATEST, max(SOONEST, SHARE * idle))


STRANGER = (
    "the server does not let this node in: its .pub must lie in the server's keys/nodes, and clocks agree within 5 min"
)
PUT_OUT = "the server lets this node no longer in: its key was revoked, or its .pub removed"
CAUSES = {
    "2004": "another node uses this key now, or one that was killed did so until a minute ago: each node needs its own",
    "mismatch": "the server's certificate does not name {host}: make keys with --hosts {host}, or use a name it has",
    "has expired": "the server's certificate has ended, or the clock is wrong: see `fedctta fleet keys --renew`",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of the authority in ca.crt: copy the ca.crt of the"
    " server's folder of keys",
    "SSL": "what answers at {address} does not speak TLS as a server with keys does: is it the server's --listen?",
    "401": STRANGER,
}
"""What Flower says of a connection that cannot be made, and what that means."""


def explain(said: str, address: str) -> str:
    """Return why no connection can be made, and what to do.

    >>> explain("[SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch, ...", "a.example:9092")
    "the server's certificate does not name a.example: make keys with --hosts a.example, or use a name it has"
    """
    known = (meaning for sign, meaning in CAUSES.items() if sign in said)
    text = next(known, "the server at {address} cannot be used: " + " ".join(said.split())[:300])
    return text.replace("{address}", address).replace("{host}", address.rpartition(":")[0])


class OwnWords(logging.Filter):
    """Keeps of what Flower logs the warnings, once each; `why` is why it ends the node."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address, self._last, self.why = address, "", ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written, and change its words."""
        if record.name != FLOWER:
            self._last = ""
            return True
        said = record.getMessage()
        if said.startswith("Exit Code"):
            self.why = explain(said.partition("\n")[2].partition("\n\n")[0], self._address)
            return False
        if record.levelno < logging.WARNING or "handshake error" in said:
            return False
        if said.startswith("Connection attempt failed"):
            said = f"no server answers at {self._address}: the node goes on trying"
        before, self._last = self._last, said
        record.msg, record.args = said, ()
        return said != before


class Node:
    """One connection to a SuperLink; `connection` is what Flower's `http_request_response` yields."""

    def __init__(self, connection: tuple[Any, ...], socket: str, trusted: dict[str, str] | None) -> None:
        self._id, self._receive, self._send, self._get_run, self._get_fab, *rest = connection
        self._pull, self._push, self._confirm = rest
        self._socket, self._trusted = socket, trusted
        self._silence: str | None = None  # why the device did not answer the last message
        self._run: tuple[int, bool] | None = None  # the last run, and whether its app is signed

    def serve(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Carry messages for ever."""
        last = time.monotonic()
        while True:
            if self.carry_one():
                last = time.monotonic()
            else:
                sleep(wait_before(time.monotonic() - last))

    def carry_one(self) -> bool:
        """Carry a message and its answer; return whether there was one."""
        try:
            if (received := self._receive()) is None:
                return False
            message, tree = received
            run, began = message.metadata.run_id, time.monotonic()
            identity = flower.TaskIdentity  # without which no answer can be made
            identity.run_id, identity.node_id, identity.task_id = run, self._id, 0
            self._reply(self._answer(message, tree, run), run, began)
        except flower.RunNotRunningException:
            log.info("a message of a run that has ended is dropped")
        except (ValueError, TypeError, KeyError, flower.ObjectPullError, flower.ObjectPushError) as error:
            log.warning("a message is dropped: %s: %s", type(error).__name__, error)
        return True

    def _answer(self, message: flower.Message, tree: Any, run: int) -> flower.Message:
        if not self._is_trusted(run):
            log.error("the app (FAB) of run %d could not be verified: no key in trusted.yaml has signed it", run)
            return flower.Message(flower.Error(UNSIGNED, "The FAB could not be verified."), reply_to=message)
        pull, confirm = partial(self._pull, run), partial(self._confirm, run)
        message = flower.pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=flower.Message)
        message.metadata.__dict__["_message_id"] = tree.object_id  # which a packed message does not hold
        own: dict[str, bool | float | int | str] = {"device": self._socket}
        none = flower.RecordDict()
        try:
            return app(
                message, flower.Context(run_id=run, node_id=self._id, node_config=own, state=none, run_config={})
            )
        except Exception as error:  # as Flower does: whatever happens in a ClientApp is an error message
            log.exception("a message cannot be carried")
            return flower.Message(flower.Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def _is_trusted(self, run: int) -> bool:
        if self._trusted is None:
            return True
        if self._run is None or self._run[0] != run:
            fab = self._get_fab(self._get_run(run).fab_hash, run)
            self._run = (run, is_signed(fab.content, fab.verifications, self._trusted))
        return self._run[1]

    def _reply(self, reply: flower.Message, run: int, began: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with flower.no_object_id_recompute():
            wanted, session = self._send(reply, flower.get_object_tree(reply), time.monotonic() - began)
            push = partial(self._push, run, session)
            flower.push_objects(flower.get_all_nested_objects(reply), push, object_ids_to_push=wanted)
        before, self._silence = self._silence, why_silent(reply)
        if self._silence:
            if self._silence != before:
                log.warning("%s", self._silence)
            return
        kind, round_ = reply.metadata.message_type, reply.metadata.group_id
        what = "answered the server's hello" if kind == HELLO else f"round {round_}: answered the server"
        log.info("%s in %.2f s", what, time.monotonic() - began)


def main(words: list[str]) -> None:
    """Serve until ended."""
    address, socket, *proof = words
    connect = flower.http_request_response
    ours, handler = OwnWords(address), logging.StreamHandler()
    handler.addFilter(ours)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", handlers=[handler])
    log.setLevel(logging.INFO)  # others only if they warn: httpx has a line for every request
    logging.getLogger(FLOWER).handlers.clear()  # it would write every line twice
    joined = False
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # an end of which the SuperLink is told
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(PUT_OUT if joined else STRANGER))  # Flower's way
    keys = trusted = None
    if proof:
        key = read_node_key(Path(proof[1]))
        keys, trusted = (key, key.public_key()), read_trusted(Path(proof[2]))
    try:
        with connect(address, not proof, proof[0] if proof else None, keys) as connection:
            joined = True
            log.info("SuperNode ID: %s", connection[0])
            Node(connection, socket, trusted).serve()
    except SystemExit as end:
        sys.exit(ours.why or end.code)


if __name__ == "__main__":
    main(sys.argv[1:])
