"""Packed parcels over a Unix socket: 8 bytes of length (big-endian), then the bytes; one request and one reply.

Everything is bounded: the length by a limit, and the whole of an exchange by a deadline.
"""

from __future__ import annotations

import socket
from pathlib import Path
from time import monotonic

from fedctta.errors import UserError, reason

LIMIT = 64 << 20
LONGEST_PATH = 107
"""Bytes; the operating system takes no longer name for a Unix socket."""


class Undelivered(Exception):
    """The other side is absent, is too slow, or sends something that is not a parcel; the message says which."""


def check_path(path: Path) -> None:
    """Refuse a path that is too long for a Unix socket."""
    length = len(str(path).encode())
    if length > LONGEST_PATH:
        raise UserError(
            f"socket path {path} has {length} bytes and at most {LONGEST_PATH} fit: choose a shorter --socket"
        )


def exchange(path: Path, request: bytes, timeout: float, limit: int = LIMIT) -> bytes:
    """Send a request to the device at `path` and return its reply, both within `timeout` seconds."""
    deadline = monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            write(connection, request, deadline)
            return read(connection, limit, deadline)
    except TimeoutError as error:
        raise Undelivered(f"the device at {path} did not answer within {timeout:g} seconds") from error
    except OSError as error:
        raise Undelivered(f"no device answers at {path} ({reason(error)})") from error


def write(connection: socket.socket, content: bytes | memoryview, deadline: float) -> None:
    """Send one length and its bytes, before the deadline."""
    connection.settimeout(_left(deadline))
    connection.sendall(len(content).to_bytes(8, "big"))
    connection.settimeout(_left(deadline))
    connection.sendall(content)


def read(connection: socket.socket, limit: int, deadline: float) -> bytes:
    """Receive one length and its bytes, before the deadline."""
    length = int.from_bytes(_exactly(connection, 8, deadline), "big")
    if length > limit:
        raise Undelivered(f"{length} bytes are announced and {limit} allowed")
    return bytes(_exactly(connection, length, deadline))


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytearray:
    # It grows with what comes: an announced length alone costs the reader no memory.
    content = bytearray()
    while len(content) < count:
        connection.settimeout(_left(deadline))
        piece = connection.recv(min(count - len(content), 1 << 20))
        if not piece:
            raise Undelivered("the connection was closed in the middle of a parcel")
        content += piece
    return content


def _left(deadline: float) -> float:
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError
    return left
