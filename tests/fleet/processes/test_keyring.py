"""The folder of keys and Flower's list agree, at the start and while the server runs."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("cryptography")

from fedctta.errors import UserError
from fedctta.fleet.processes import keyring as module
from fedctta.fleet.processes.keyring import Keyring
from fedctta.fleet.server.bindings import Bindings, read_certificate
from fedctta.fleet.transport.certificates import add_node, make_keys, read_end, renew, revoke_node


class Flower:
    """Flower's list of nodes."""

    def __init__(self):
        self.there, self.next, self.fails = {}, 100, False

    def register(self, key, name):
        if self.fails:
            raise UserError("no; see the SuperLink's log")
        self.next += 1
        self.there[key] = self.next
        return self.next

    def unregister(self, node):
        self.there = {key: n for key, n in self.there.items() if n != node}

    def nodes(self):
        return dict(self.there)


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys", [], 2)
    return tmp_path / "keys"


def names(state):
    return Bindings(state).names


def test_names_follow_the_folder_while_the_server_runs(keys, tmp_path):
    flower = Flower()
    ring = Keyring(flower, keys / "nodes")
    ring.agree()
    ring.publish(tmp_path)
    assert names(tmp_path) == {101: "device-0", 102: "device-1"}
    revoke_node(keys, "device-1")
    ring.tend(tmp_path)
    assert names(tmp_path) == {101: "device-0"}
    assert list(flower.there.values()) == [101]
    add_node(keys, "device-1")
    ring.tend(tmp_path)
    assert names(tmp_path) == {101: "device-0", 103: "device-1"}


def test_a_key_that_is_gone_is_put_out_at_the_next_start(keys, tmp_path):
    flower = Flower()
    Keyring(flower, keys / "nodes").agree()
    (keys / "nodes" / "device-0.pub").unlink()
    Keyring(flower, keys / "nodes").agree()
    assert list(flower.there.values()) == [102]


def test_named_files_are_all_there_is(keys):
    flower = Flower()
    ring = Keyring(flower, [keys / "nodes" / "device-1.pub"])
    ring.agree()
    assert [name for name, _ in ring.names.values()] == ["device-1"]


def test_one_key_has_one_name_and_never_returns(keys):
    copy = keys / "nodes" / "other.pub"
    copy.write_bytes((keys / "nodes" / "device-0.pub").read_bytes())
    with pytest.raises(UserError, match="the same key"):
        Keyring(Flower(), keys / "nodes").agree()
    revoke_node(keys, "device-0")
    with pytest.raises(UserError, match="was revoked"):
        Keyring(Flower(), keys / "nodes").agree()


def test_what_is_wrong_meanwhile_is_told_once_and_lets_nobody_in(keys, tmp_path, caplog):
    ring = Keyring(Flower(), keys / "nodes")
    ring.agree()
    (keys / "nodes" / "torn.pub").write_text("ecdsa")
    for _ in range(3):
        ring.tend(tmp_path)
    assert [record.message for record in caplog.records if "left as they were" in record.message] == [
        f"the keys are left as they were: {keys / 'nodes' / 'torn.pub'} holds no public key: copy it again"
    ]
    assert len(ring.names) == 2


def test_a_superlink_that_restarts_is_asked_again(keys, tmp_path):
    flower = Flower()
    ring = Keyring(flower, keys / "nodes")
    ring.agree()
    add_node(keys, "new")
    flower.fails = True
    ring.tend(tmp_path)
    flower.fails = False
    ring.tend(tmp_path)
    assert "new" in names(tmp_path).values()


def test_a_certificate_is_watched(keys, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    ring = Keyring(Flower(), keys / "nodes", keys / "server.crt")
    assert not ring.renewed()
    renew(keys, days=10)
    assert (ring.renewed(), ring.renewed()) == (True, False)
    ring.tend(tmp_path)
    ring.tend(tmp_path)
    assert sum("ends in 9 days" in record.message for record in caplog.records) == 1
    ring.publish(tmp_path)
    assert read_certificate(tmp_path) == (keys / "server.crt", read_end(keys / "server.crt"))
    monkeypatch.setattr(module, "DAY", -1.0)
    renew(keys, days=0)
    ring.tend(tmp_path)
    assert "server.crt ended on" in caplog.text
