"""Keys that TLS and Flower accept, readable by their owner only, and never written over."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedctta.errors import UserError
from fedctta.fleet.transport.certificates import add_node, make_keys, read_node_key, remind, renew, revoke_node


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys") / "k"
    make_keys(folder, ["fleet.example.org", "10.0.0.5"], 2)
    return folder


def handshake(keys, trust, name):
    """Connect as a node would; return the server's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.crt", keys / "server.key")
    ours, theirs = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=str(trust)).wrap_socket(ours, server_hostname=name) as connection:
            return connection.getpeercert()
    finally:
        ours.close()
        thread.join(5)


@pytest.mark.parametrize("name", ["fleet.example.org", "10.0.0.5", "localhost", "127.0.0.1"])
def test_nodes_know_the_server_by_its_names(keys, name):
    assert handshake(keys, keys / "ca.crt", name)


def test_another_name_and_another_authority_are_refused(keys, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, keys / "ca.crt", "evil.example.org")
    make_keys(tmp_path / "other", [], 1)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(keys, tmp_path / "other" / "ca.crt", "localhost")


def test_node_keys_belong_together(keys):
    private = load_ssh_private_key((keys / "nodes" / "device-1.key").read_bytes(), None)
    public = load_ssh_public_key((keys / "nodes" / "device-1.pub").read_bytes())
    assert private.public_key().public_numbers() == public.public_numbers()
    assert public.curve.name == "secp384r1"


def test_private_files_are_private_and_stay(keys):
    for path in (*keys.glob("*.key"), *keys.glob("nodes/*.key"), keys / "superexec.secret"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert keys.stat().st_mode & 0o777 == 0o700
    with pytest.raises(UserError, match="not empty"):
        make_keys(keys, [], 1)
    before = (keys / "nodes" / "device-0.key").read_bytes()
    with pytest.raises(UserError, match="never written over"):
        add_node(keys, "device-0")
    assert (keys / "nodes" / "device-0.key").read_bytes() == before


def test_half_a_pair_is_not_written(tmp_path):
    keys = tmp_path / "keys"
    make_keys(keys, [], 1)
    (keys / "nodes" / "device-0.key").unlink()  # it lies on its device
    with pytest.raises(UserError, match=r"device-0\.pub is there already"):
        add_node(keys, "device-0")
    assert [path.name for path in (keys / "nodes").iterdir()] == ["device-0.pub"]


@pytest.mark.parametrize("change", [lambda k: add_node(k, "x"), lambda k: revoke_node(k, "x"), renew])
def test_a_folder_that_is_not_there_is_said(tmp_path, change):
    with pytest.raises(UserError, match=r"gone is not there: name the folder of keys, or make one with .*--out .*gone"):
        change(tmp_path / "gone")
    with pytest.raises(UserError, match="holds no keys yet"):
        change(tmp_path)
    assert not list(tmp_path.iterdir())


def test_damaged_files_are_said(tmp_path, keys):
    for content, reason in ((None, "No such file"), ("x", "is no private key")):
        if content is not None:
            (tmp_path / "x.key").write_text(content)
        with pytest.raises(UserError, match=reason):
            read_node_key(tmp_path / "x.key")
    assert read_node_key(keys / "nodes" / "device-0.key").curve.name == "secp384r1"
    with pytest.raises(UserError, match="No such file"):
        remind(tmp_path / "gone.crt")
    make_keys(tmp_path / "k", [], 1)
    (tmp_path / "k" / "ca.key").write_text("x")
    with pytest.raises(UserError, match=r"ca\.key is no key"):
        renew(tmp_path / "k")


def test_a_wrong_host_is_told(tmp_path):
    with pytest.raises(UserError, match="neither a name nor an address"):
        make_keys(tmp_path / "k", ["bücher.example"], 1)


def test_a_node_is_added_to_keys_that_are_there(tmp_path, keys):
    assert [path.name for path in add_node(keys, "device-9")] == ["device-9.key", "device-9.pub"]
    with pytest.raises(UserError, match="holds no keys yet"):
        add_node(tmp_path, "device-9")
    with pytest.raises(UserError, match="letters, digits"):
        add_node(keys, "../device")


def test_certificates_are_renewed_for_the_same_keys_and_hosts(tmp_path):
    keys, old = tmp_path / "keys", tmp_path / "old.crt"
    make_keys(keys, ["fleet.example.org", "10.0.0.5"], 1, days=3)
    old.write_bytes((keys / "ca.crt").read_bytes())
    assert "ends in 2 days" in remind(keys / "server.crt")
    assert {path.name for path in renew(keys)} == {"ca.crt", "server.crt", "app.fab", "app.json"}
    assert remind(keys / "server.crt") is None
    for trust in (old, keys / "ca.crt"):  # nodes that have not got the new one yet know the server too
        for name in ("fleet.example.org", "10.0.0.5", "localhost"):
            assert handshake(keys, trust, name)


def test_keys_of_an_earlier_version_get_a_signed_app(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    for file in ("app.key", "app.fab", "app.json", "trusted.yaml"):
        (tmp_path / "keys" / file).unlink()
    renew(tmp_path / "keys")
    assert (tmp_path / "keys" / "app.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys" / "trusted.yaml").read_text().startswith("fedctta: 'ssh-ed25519 ")


def test_nothing_is_renewed_without_the_authority(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    (tmp_path / "keys" / "ca.key").unlink()
    with pytest.raises(UserError, match=r"no ca\.key"):
        renew(tmp_path / "keys")


def test_a_certificate_that_has_ended_is_refused(tmp_path):
    make_keys(tmp_path / "keys", [], 1, days=0)
    with pytest.raises(UserError, match=r"ended on .*--renew"):
        remind(tmp_path / "keys" / "server.crt")
    with pytest.raises(UserError, match="cannot be read"):
        remind(tmp_path / "keys" / "server.key")


def test_a_key_is_revoked(tmp_path):
    keys = tmp_path / "keys"
    make_keys(keys, [], 1)
    place = revoke_node(keys, "device-0")
    assert place.parent == keys / "revoked"
    assert not list((keys / "nodes").iterdir())
    with pytest.raises(UserError, match="no key of 'device-0': its nodes are none"):
        revoke_node(keys, "device-0")
    add_node(keys, "device-0")
