"""Bounds hold for whatever comes over a connection. What passes the gate is tested with the gate."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("h11")

from fedctta.fleet.transport.bounded_server import BoundedServer, Guest, Refusal, Request
from fedctta.fleet.transport.limits import Limits


def judge(request: Request) -> str:
    if request.target != b"/known":
        raise Refusal(401)
    return "me"


def talk(content, limits=None, wait=10.0):
    """Send bytes to a server and return its answer, what it served, and what is left of it."""
    served: list[bytes] = []

    async def serve(request):
        served.append(request.body)
        return 200, [], b"well"

    async def both():
        server = BoundedServer(judge, serve, limits or Limits(head_seconds=wait, slack_seconds=wait, least_speed=1e9))
        with socket.create_server(("127.0.0.1", 0)) as door:
            task = asyncio.create_task(server.listen(door))
            reader, writer = await asyncio.open_connection(*door.getsockname())
            writer.write(content)
            if writer.can_write_eof():
                writer.write_eof()
            async with asyncio.timeout(60):
                answer = await reader.read()
                while server.guests:
                    await asyncio.sleep(0.005)
            writer.close()
            task.cancel()
        return answer, server

    answer, server = asyncio.run(both())
    assert not server.held
    return answer, served, server


def test_what_is_known_is_served_again_and_again():
    one = b"POST /known HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    answer, served, server = talk(one + one)
    assert served == [b"hi", b"hi"]
    assert answer.count(b"HTTP/1.1 200") == 2
    assert not server.refused


def test_what_follows_a_refused_request_is_not_read():
    """Its body is not read, so that what comes next may be a part of it."""
    known = b"POST /known HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
    answer, served, server = talk(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n" + known)
    assert (served, answer.count(b"HTTP/1.1 ")) == ([], 1)
    assert server.refused == {401: 1}


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=60).map(lambda b: b"POST /known HTTP/1.1\r\nHost: x\r\n" + b),
        st.tuples(st.integers(-3, 70_000), st.binary(max_size=60)).map(
            lambda t: b"POST /known HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % t[0] + t[1]
        ),
    )
)
def test_whatever_comes_it_is_left_as_it_was(content):
    talk(content, wait=0.05)


def test_one_stranger_more_ends_the_oldest_of_those_who_are_most():
    ended = []

    class Task:
        def __init__(self, number):
            self.number = number

        def cancel(self):
            ended.append(self.number)

    server = BoundedServer(judge, None, Limits(strangers=6, strangers_per_address=4, connections=8))
    for number, (address, known) in enumerate([("a", True), *[("b", False)] * 4, ("c", False)]):
        server.guests[Guest(address, Task(number), known)] = None
    assert server._make_room("b")
    assert ended == [1]
    server.guests[Guest("b", Task(6))] = None
    server.guests[Guest("d", Task(7))] = None
    assert server._make_room("e")
    assert ended == [1, 2]
    for number in (8, 9):
        server.guests[Guest("a", Task(number), True)] = None
    assert not server._make_room("a")
