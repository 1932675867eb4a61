"""An HTTP/1.1 server that strangers cannot wear out: everything they may cost it is bounded, and known beforehand.

- A connection that has not yet sent a request of somebody known is a stranger's. There are so many of these per
  address and in all; one more ends the oldest, which had its chance. Its first request must be there in seconds.
- Who sends a request is judged by its head; a stranger's body is never read.
- A body is read only if its announced length is allowed and fits the bytes that all bodies together may have, and
  those of its sender; it must come at a least speed. It is whole before anybody else is troubled with it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11

from fedctta.fleet.transport.limits import Limits

log = logging.getLogger("fedctta.fleet")

LINGER_SECONDS, LINGER_BYTES = 1.0, 1 << 20

Headers = list[tuple[bytes, bytes]]
Reply = tuple[int, Headers, bytes]


@dataclass(frozen=True)
class Request:
    """A request's head, and its body once it was read."""

    method: str
    target: bytes
    headers: Headers
    body: bytes = b""


@dataclass(eq=False)
class Guest:
    """One connection."""

    address: str
    task: asyncio.Task[None] | None = None
    known: bool = False


class Refusal(Exception):
    """A request that is not served: its status."""

    def __init__(self, status: int) -> None:
        self.status = status


Judge = Callable[[Request], str]
"""Returns who sends a request, or raises a `Refusal`."""

Serve = Callable[[Request], Awaitable[Reply]]


@dataclass(eq=False)
class BoundedServer:
    """Serves what `judge` lets pass."""

    judge: Judge
    serve: Serve
    limits: Limits = field(default_factory=Limits)
    tls: ssl.SSLContext | None = None
    guests: dict[Guest, None] = field(default_factory=dict)  # in the order of their arrival
    held: Counter[str] = field(default_factory=Counter)  # bytes of bodies, by sender
    refused: Counter[int] = field(default_factory=Counter)  # requests, by status; 0: connections that were ended

    async def listen(self, door: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        door.setblocking(False)
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(door)
                except OSError:  # no more files, say; some will be closed
                    await asyncio.sleep(0.05)
                    continue
                guest = Guest(str(address[0]))
                if not self._make_room(guest.address):
                    connection.close()
                    self.refused[0] += 1
                    continue
                self.guests[guest] = None
                guest.task = asyncio.create_task(self._attend(connection, guest))
        finally:
            for guest in list(self.guests):
                if guest.task is not None:
                    guest.task.cancel()

    def _make_room(self, address: str) -> bool:
        """End the oldest stranger if there are too many; return whether one more may come."""
        strangers = [guest for guest in self.guests if not guest.known]
        same = [guest for guest in strangers if guest.address == address]
        oldest = None
        if len(same) >= self.limits.strangers_per_address:
            oldest = same[0]
        elif len(strangers) >= self.limits.strangers:
            most, _ = Counter(guest.address for guest in strangers).most_common(1)[0]
            oldest = next(guest for guest in strangers if guest.address == most)
        if oldest is not None and oldest.task is not None:
            del self.guests[oldest]
            oldest.task.cancel()
            self.refused[0] += 1
        return len(self.guests) < self.limits.connections

    async def _attend(self, connection: socket.socket, guest: Guest) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 16)
        protocol = asyncio.StreamReaderProtocol(reader)
        timeouts = (
            {"ssl_handshake_timeout": self.limits.head_seconds, "ssl_shutdown_timeout": 1.0}
            if self.tls is not None
            else {}
        )
        transport: Any = None
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=self.tls, **timeouts)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            await Conversation(self, reader, writer, guest).hold()
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass
        finally:
            self.guests.pop(guest, None)
            if transport is not None:
                transport.abort()
            connection.close()


class Conversation:
    """The requests of one connection, one after another."""

    def __init__(
        self, server: BoundedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guest: Guest
    ) -> None:
        self._server, self._limits, self._guest = server, server.limits, guest
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.head_bytes)

    async def hold(self) -> None:
        """Serve requests until the other side leaves, is too slow, or is refused."""
        while True:
            patience = self._limits.idle_seconds if self._guest.known else self._limits.head_seconds
            async with asyncio.timeout(patience):
                event = await self._next()
            if not isinstance(event, h11.Request):
                return
            request = Request(event.method.decode("ascii"), event.target, list(event.headers))
            try:
                reply = await self._reply(request)
            except Refusal as refusal:
                self._server.refused[refusal.status] += 1
                await self._send((refusal.status, [(b"connection", b"close")], b""))
                await self._linger()
                return  # its body is not read, so that what follows cannot be told from it
            await self._send(reply)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _reply(self, request: Request) -> Reply:
        sender = self._server.judge(request)
        self._guest.known = True
        length, held = self._length(request), self._server.held
        if held.total() + length > self._limits.held_bytes or held[sender] + length > self._limits.held_per_sender:
            raise Refusal(503)
        held[sender] += length
        try:
            body = await self._body(length)
            return await self._server.serve(Request(request.method, request.target, request.headers, body))
        finally:
            held[sender] -= length
            if not held[sender]:
                del held[sender]

    def _length(self, request: Request) -> int:
        """Return the announced length of the body; h11 has checked that it is one number."""
        told = dict(request.headers).get(b"content-length")
        if told is None:
            raise Refusal(411)
        length = int(told)
        if length > self._limits.body_bytes:
            raise Refusal(413)
        return length

    async def _body(self, length: int) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds_for(length)):
                while isinstance(event := await self._next(), h11.Data):
                    body += event.data
        except TimeoutError as error:
            raise Refusal(408) from error
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        return bytes(body)

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                going_on = h11.InformationalResponse(status_code=100, headers=[])
                self._writer.write(self._http.send(going_on) or b"")
            self._http.receive_data(await self._reader.read(1 << 16))
        return event

    async def _send(self, reply: Reply) -> None:
        status, headers, body = reply
        headers = [*headers, (b"content-length", str(len(body)).encode())]
        content = self._http.send(h11.Response(status_code=status, headers=headers)) or b""
        content += self._http.send(h11.Data(data=body)) or b""
        content += self._http.send(h11.EndOfMessage()) or b""
        self._writer.write(content)
        async with asyncio.timeout(self._limits.seconds_for(len(body))):
            await self._writer.drain()

    async def _linger(self) -> None:
        """Let an answer reach a sender who is still sending: closing at once would take it back."""
        left = LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while left > 0 and (piece := await self._reader.read(1 << 16)):
                    left -= len(piece)
