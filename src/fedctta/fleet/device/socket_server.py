"""The door of a device: a Unix socket, served by a separate thread, to which the ClientApp sends requests.

Only the user who runs the device may connect (mode 0600). One request is served at a time; one that is malformed, or
arrives too slowly, is dropped. Predictions never wait for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import TracebackType

from fedctta.errors import UserError, reason
from fedctta.fleet.transport.framing import LIMIT, Undelivered, check_path, read, write
from fedctta.fleet.transport.wire import Malformed, Parcel, pack, unpack

log = logging.getLogger("fedctta.fleet")

SLOWEST_REQUEST = 10.0
"""Seconds a request may take to arrive, or a reply to be fetched."""

_TICK = 0.2


class SocketServer:
    """Answers requests, from entry to exit of a `with` block."""

    def __init__(self, path: Path, answer: Callable[[Parcel], Parcel], limit: int = LIMIT) -> None:
        self.path, self._answer, self._limit = path, answer, limit
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="door", daemon=True)

    def __enter__(self) -> SocketServer:
        self._socket = _listen(self.path)
        self._inode = self.path.stat().st_ino
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the current request, then close."""
        self._closing.set()
        self._thread.join(timeout=2 * SLOWEST_REQUEST)
        self._socket.close()
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:  # another device may have taken the name meanwhile
                self.path.unlink()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing.wait(_TICK):
                    log.warning("nobody can knock at the door: %s", error)
                continue
            with connection:
                self._attend(connection)

    def _attend(self, connection: socket.socket) -> None:
        try:
            request = read(connection, self._limit, monotonic() + SLOWEST_REQUEST)
            reply = self._reply(request)
            write(connection, reply, monotonic() + SLOWEST_REQUEST)
        except (Undelivered, OSError) as error:
            log.warning("a request at the door was dropped: %s", error)

    def _reply(self, request: bytes) -> bytes:
        try:
            return pack(self._answer(unpack(request, self._limit))).tobytes()
        except Malformed as error:
            return pack(Parcel("refused", note={"reason": f"malformed request: {error}"})).tobytes()
        except Exception as error:  # no request may stop this thread
            log.exception("a request at the door failed")
            return pack(Parcel("refused", note={"reason": f"the device failed to answer: {error!r:.200}"})).tobytes()


def _listen(path: Path) -> socket.socket:
    """Open the socket; take over the name of one whose device is dead, and of nothing else."""
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise UserError(f"{path} exists and is no socket: choose another --socket")
        if _alive(path):
            raise UserError(f"another device listens at {path}: stop it, or choose another --socket")
        path.unlink()
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        door.bind(str(path))
    except OSError as error:
        door.close()
        raise UserError(f"cannot listen at {path}: {reason(error)}; choose another --socket") from error
    finally:
        os.umask(mask)
    door.listen(8)
    door.settimeout(_TICK)
    return door


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True
        except OSError:
            return False
        return True
