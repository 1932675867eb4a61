from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest

from fedctta.errors import UserError
from fedctta.fleet.device import socket_server as door_module
from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.transport.framing import exchange
from fedctta.fleet.transport.wire import Parcel, pack, unpack


def echo(parcel: Parcel) -> Parcel:
    return Parcel("nothing", parcel.round, {"reason": parcel.kind})


def ask(path: Path, parcel: Parcel, timeout: float = 60) -> Parcel:
    return unpack(exchange(path, pack(parcel).tobytes(), timeout), 1 << 20)


def test_the_door_answers_only_its_user_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "s"
    with SocketServer(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for number in range(3):
            assert ask(path, Parcel("hello", number)) == Parcel("nothing", number, {"reason": "hello"})
    assert not path.exists()


def test_nonsense_and_failures_do_not_close_it(tmp_path, monkeypatch, caplog):
    def fails_at_first(parcel: Parcel) -> Parcel:
        if parcel.round == 0:
            raise ZeroDivisionError
        return echo(parcel)

    path = tmp_path / "s"
    with SocketServer(path, fails_at_first, limit=1000):
        assert unpack(exchange(path, b"nonsense", 60), 1 << 20).kind == "refused"
        assert "ZeroDivisionError" in ask(path, Parcel("hello", 0)).note["reason"]
        monkeypatch.setattr(door_module, "SLOWEST_REQUEST", 0.3)
        for content in (b"", b"\x00\x00", (1 << 50).to_bytes(8, "big"), (100).to_bytes(8, "big") + b"few"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
                rude.connect(str(path))
                rude.sendall(content)
        silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        silent.connect(str(path))
        assert ask(path, Parcel("hello", 1)).round == 1
        silent.close()
    assert "dropped" in caplog.text


def test_a_name_in_use_is_refused_and_a_dead_one_is_taken_over(tmp_path):
    path = tmp_path / "s"
    with SocketServer(path, echo), pytest.raises(UserError, match="another device listens"), SocketServer(path, echo):
        pass
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(path))
    dead.close()
    with SocketServer(path, echo):
        assert ask(path, Parcel("hello")).kind == "nothing"
    path.write_text("mine")
    with pytest.raises(UserError, match="is no socket"), SocketServer(path, echo):
        pass
    assert path.read_text() == "mine"


def test_a_long_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="shorter"), SocketServer(tmp_path / ("s" * 120), echo):
        pass


def test_closing_finishes_the_request_under_way(tmp_path):
    began, path, replies = threading.Event(), tmp_path / "s", []

    def slow(parcel: Parcel) -> Parcel:
        began.set()
        threading.Event().wait(0.3)
        return echo(parcel)

    with SocketServer(path, slow):
        asking = threading.Thread(target=lambda: replies.append(ask(path, Parcel("hello", 9))))
        asking.start()
        began.wait(60)
    asking.join()
    assert replies[0].round == 9
