from __future__ import annotations

import socket
import threading
from pathlib import Path
from time import monotonic

import pytest

from fedctta.errors import UserError
from fedctta.fleet.transport.framing import Undelivered, check_path, exchange, read, write


def answering(path: Path, reply: bytes | None, announce: int | None = None) -> threading.Thread:
    """Serve one connection: read a request, send the reply (or nothing) and close."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(str(path))
    door.listen()

    def serve() -> None:
        connection, _ = door.accept()
        with door, connection:
            read(connection, 1 << 20, monotonic() + 60)
            if announce is not None:
                connection.sendall(announce.to_bytes(8, "big") + (reply or b""))
            elif reply is not None:
                write(connection, reply, monotonic() + 60)
            else:
                connection.recv(1)  # until the other side gives up

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_a_request_is_answered(tmp_path):
    answering(tmp_path / "s", b"x" * 3_000_000)
    assert exchange(tmp_path / "s", b"hello", 60) == b"x" * 3_000_000


def test_a_missing_a_dead_and_a_silent_device_are_told(tmp_path):
    with pytest.raises(Undelivered, match="no device answers"):
        exchange(tmp_path / "s", b"hello", 1)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(str(tmp_path / "dead"))
    door.close()
    with pytest.raises(Undelivered, match="refused"):
        exchange(tmp_path / "dead", b"hello", 1)
    thread = answering(tmp_path / "silent", None)
    with pytest.raises(Undelivered, match="did not answer within"):
        exchange(tmp_path / "silent", b"hello", 0.2)
    thread.join(60)
    assert not thread.is_alive()  # it waited until the other side gave up


@pytest.mark.parametrize(("announce", "said"), [(1 << 40, "allowed"), (10, "middle")])
def test_a_wrong_length_is_refused(tmp_path, announce, said):
    answering(tmp_path / "s", b"few", announce)
    with pytest.raises(Undelivered, match=said):
        exchange(tmp_path / "s", b"hello", 60, limit=1000)


def test_a_path_too_long_for_a_socket_is_told(tmp_path):
    check_path(tmp_path / "s")
    with pytest.raises(UserError, match="shorter --socket"):
        check_path(tmp_path / ("s" * 108))
