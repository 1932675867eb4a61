"""A node carries messages to its device, for signed apps only, and never ends because of one of them."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr")

import yaml
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from fedctta.errors import UserError
from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.transport import node
from fedctta.fleet.transport.app_bundle import build_bundle, make_signer, sign_bundle
from fedctta.fleet.transport.client_app import RECORD
from fedctta.fleet.transport.node import Node, wait_before
from fedctta.fleet.transport.wire import Parcel, pack, unpack


class Link:
    """A SuperLink in this process: hands out messages, takes the objects of answers."""

    def __init__(self, verifications=None, bundle=b"app"):
        self.waiting, self.objects, self.sent, self.pulled, self.checked = [], {}, [], [], 0
        self.verifications, self.bundle = verifications or {}, bundle

    def ask(self, parcel, kind="train.step", run=5):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, 1, 0
        content = RecordDict({RECORD: ArrayRecord({RECORD: Array(pack(parcel))})})
        message = Message(content, dst_node_id=9, message_type=kind, group_id="3")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.objects |= {key: thing.deflate() for key, thing in get_all_nested_objects(message).items()}
        self.waiting.append((message, get_object_tree(message)))

    def get_fab(self, fab_hash, run):
        self.checked += 1
        return SimpleNamespace(content=self.bundle, verifications=self.verifications)

    def pull(self, run, key):
        self.pulled.append(key)
        return self.objects[key]

    def send(self, message, tree, seconds):
        self.sent.append(message)
        return {part.object_id for part in walk(tree)}, "session"

    def push(self, run, session, key, content):
        assert session == "session"
        self.objects[key] = content

    def connection(self):
        def receive():
            return self.waiting.pop(0) if self.waiting else None

        run = SimpleNamespace(fab_hash="h")
        return 9, receive, self.send, lambda r: run, self.get_fab, self.pull, self.push, lambda r, key: None

    def answer(self):
        """Return the parcel of the last answer, as its objects have arrived."""
        message = self.sent[-1]
        assert message.metadata.dst_node_id == 1
        assert {part.object_id for part in walk(get_object_tree(message))} <= self.objects.keys()
        return unpack(message.content.array_records[RECORD][RECORD].numpy(), 1 << 20)


def walk(tree):
    yield tree
    for child in tree.children:
        yield from walk(child)


def test_messages_reach_the_device_and_answers_come_back(tmp_path):
    link = Link()

    def reply(request):
        return Parcel("upload", request.round, {"was": request.kind}, {"own.w": np.arange(3, dtype=np.float32)})

    with SocketServer(tmp_path / "s", reply):
        carrier = Node(link.connection(), str(tmp_path / "s"), None)
        for kind, parcel in (("query", Parcel("hello", 3)), ("train.step", Parcel("step", 4))):
            link.ask(parcel, kind)
            assert carrier.carry_one()
            answer = link.answer()
            assert (answer.kind, answer.round, answer.note["was"]) == ("upload", parcel.round, parcel.kind)
            assert answer.arrays["own.w"].tolist() == [0, 1, 2]
    assert not carrier.carry_one()


def test_a_dead_device_is_answered_for(tmp_path):
    link = Link()
    link.ask(Parcel("step", 5, {"nonce": "n"}))
    assert Node(link.connection(), str(tmp_path / "nobody"), None).carry_one()
    assert (link.answer().kind, link.answer().note["nonce"]) == ("nothing", "n")


def test_a_dead_device_is_told_once(tmp_path, caplog):
    caplog.set_level("INFO", logger="fedctta.fleet.node")
    link = Link()
    carrier = Node(link.connection(), str(tmp_path / "s"), None)

    def carry(times):
        caplog.clear()
        for _ in range(times):
            link.ask(Parcel("step", 5))
            carrier.carry_one()
        return [record.getMessage() for record in caplog.records]

    gone = f"no device answers at {tmp_path / 's'} (No such file or directory)"
    assert carry(3) == [gone]
    with SocketServer(tmp_path / "s", lambda request: Parcel("nothing", 5, {"device": "d", "reason": "no batch"})):
        assert [line.partition(" in ")[0] for line in carry(2)] == ["round 3: answered the server"] * 2
    assert carry(2) == [gone]


SAID = "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n{}\nIt could not.\n\nSee: visit <x>"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "another node uses this key now"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer", "copy the ca.crt"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] IP address mismatch, not valid for '10.0.0.1'", "--hosts 10.0.0.1, or"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "--renew"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "what answers at 10.0.0.1:9092 does not speak TLS"),
        ("Client error '401 Unauthorized' for url", "does not let this node in"),
        ("a {new} kind of failure", "10.0.0.1:9092 cannot be used: Failed to initialize .* a {new} kind of failure It"),
    ],
)
def test_why_there_is_no_connection_is_told_in_one_line(said, why):
    words = node.OwnWords("10.0.0.1:9092")
    assert not words.filter(logging.LogRecord("flwr", logging.ERROR, "", 0, SAID.format(said), (), None))
    assert re.search(why, words.why)
    assert "\n" not in words.why
    assert "visit" not in words.why


def test_flowers_lines_are_told_once_and_without_its_inner_ones():
    words, told = node.OwnWords("a:1"), []
    for name, level, line in (
        ("flwr", logging.DEBUG, "Connection attempt failed with exception: refused"),
        ("flwr", logging.WARNING, "Connection attempt failed, retrying in 0.48 seconds"),
        ("flwr", logging.WARNING, "Connection attempt failed, retrying in 2.97 seconds"),
        ("flwr", logging.ERROR, "SSL/TLS handshake error detected."),
        ("fedctta.fleet.node", logging.INFO, "answered"),
        ("flwr", logging.WARNING, "Connection attempt failed, retrying in 0.48 seconds"),
    ):
        record = logging.LogRecord(name, level, "", 0, line, (), None)
        if words.filter(record):
            told.append(record.getMessage())
    tried = "no server answers at a:1: the node goes on trying"
    assert told == [tried, "answered", tried]


def test_only_signed_apps_reach_the_device(tmp_path):
    bundle, (private, trusted), (_, others) = build_bundle(), make_signer(), make_signer()
    signature = json.loads(sign_bundle(bundle, private))
    asked = []

    def reply(request):
        asked.append(request)
        return Parcel("nothing")

    with SocketServer(tmp_path / "s", reply):
        for trust, signed in ((trusted, signature), (others, signature), (trusted, {}), (trusted, {"fedctta": "x"})):
            link = Link(signed, bundle)
            carrier = Node(link.connection(), str(tmp_path / "s"), yaml.safe_load(trust))
            for _ in range(2):
                link.ask(Parcel("step"))
                carrier.carry_one()
            assert link.checked == 1  # once per run
            if trust is trusted and signed is signature:
                assert len(asked) == 2
            else:
                assert link.sent[-1].error.code == node.UNSIGNED
                assert not link.pulled
        link.ask(Parcel("step"), run=6)
        carrier.carry_one()
        assert link.checked == 2
    assert len(asked) == 2


def test_foreign_kinds_of_messages_are_errors():
    link = Link()
    link.ask(Parcel("step"), "evaluate")
    Node(link.connection(), "nowhere", None).carry_one()
    assert link.sent[-1].error.code == 2


@pytest.mark.parametrize("trouble", [RunNotRunningException, KeyError, ValueError])
def test_a_message_that_cannot_be_had_ends_nothing(trouble):
    link = Link()

    def pull(run, key):
        raise trouble

    link.pull = pull
    link.ask(Parcel("step"))
    assert Node(link.connection(), "nowhere", None).carry_one()
    assert not link.sent


def test_it_asks_often_after_a_message_and_seldom_later():
    assert wait_before(0) == node.SOONEST
    assert wait_before(1e6) == node.LATEST
    waits = [wait_before(idle) for idle in range(60)]
    assert waits == sorted(waits)
    link, slept = Link(), []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            raise InterruptedError

    link.ask(Parcel("step"))
    with pytest.raises(InterruptedError):
        Node(link.connection(), "nowhere", None).serve(sleep)
    assert len(link.sent) == 1
    assert slept == [node.SOONEST] * 3


def test_a_key_of_another_kind_is_refused(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    (tmp_path / "key").write_bytes(make_signer()[0])
    try:
        with pytest.raises(UserError, match="no node's key"):
            node.main(["127.0.0.1:1", "s", "ca.crt", str(tmp_path / "key"), "trusted.yaml"])
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_it_loads_neither_torch_nor_a_web_server():
    code = "import sys, fedctta.fleet.transport.node as n; n.flower.http_request_response; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "scipy", "pyarrow", "uvicorn", "sqlalchemy"} & set(out)
