"""Who signed a request is told by its head; everybody else is nobody."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")

from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message

from fedctta.fleet.transport import node_signatures
from fedctta.fleet.transport.certificates import add_node, make_keys
from fedctta.fleet.transport.node_signatures import KEY, SIGNATURE, TIME, WINDOW, NodeSignatures

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def load(path):
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    return load_ssh_private_key(path.read_bytes(), None)


def sign(key, moment=NOW):
    """What Flower's node sends."""
    told = moment.isoformat().encode()
    public = public_key_to_bytes(key.public_key())
    return {KEY: b64encode(public), TIME: told, SIGNATURE: b64encode(sign_message(key, told))}


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(node_signatures, "LOOK", 0.0)
    make_keys(tmp_path / "keys", [], 2)
    return tmp_path / "keys" / "nodes"


def test_headers_are_those_of_flower():
    constants = pytest.importorskip("flwr.supercore.constant")
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE

    assert constants.FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == KEY
    assert constants.FLEET_HTTP_SIGNATURE_HEADER.encode() == SIGNATURE
    assert TIMESTAMP_HEADER.encode() == TIME
    assert WINDOW == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


def test_a_known_node_is_told_by_its_name(nodes):
    known = NodeSignatures(nodes, lambda: NOW)
    for k in range(2):
        assert known.signer(sign(load(nodes / f"device-{k}.key"))) == f"device-{k}"


def test_nobody_else_is(nodes):
    known, mine = NodeSignatures(nodes, lambda: NOW), sign(load(nodes / "device-0.key"))
    other = sign(load(nodes / "device-1.key"))
    assert known.signer(sign(generate_key_pairs()[0])) is None
    assert known.signer({**mine, SIGNATURE: other[SIGNATURE]}) is None
    assert known.signer({**mine, TIME: NOW.isoformat().encode() + b" "}) is None
    for name in mine:
        assert known.signer({**mine, name: b"\xff\x00"}) is None
        assert known.signer({**mine, name: b""}) is None
        assert known.signer({key: value for key, value in mine.items() if key != name}) is None


@pytest.mark.parametrize("seconds", [WINDOW + 1, -WINDOW - 1])
def test_a_signature_of_another_time_is_none(nodes, seconds):
    known = NodeSignatures(nodes, lambda: NOW)
    assert known.signer(sign(load(nodes / "device-0.key"), NOW + timedelta(seconds=seconds))) is None
    naive = sign(load(nodes / "device-0.key"), NOW.replace(tzinfo=None))
    assert known.signer(naive) is None


def test_keys_come_and_go_while_it_runs(nodes):
    known = NodeSignatures(nodes, lambda: NOW)
    mine = sign(load(nodes / "device-0.key"))
    assert known.signer(mine) == "device-0"
    (nodes / "device-0.pub").unlink()
    assert known.signer(mine) is None
    (nodes / "notes.pub").write_text("no key")
    add_node(nodes.parent, "late")
    assert known.signer(sign(load(nodes / "late.key"))) == "late"
