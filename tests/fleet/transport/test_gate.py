"""Nodes get through; control and runtime calls do not, however they are spelt."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from base64 import b64encode
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

from fedctta.fleet.processes.process_specs import free_port
from fedctta.fleet.transport.certificates import make_keys
from fedctta.fleet.transport.gate import Gate, passes, run
from fedctta.fleet.transport.limits import Limits
from fedctta.fleet.transport.node_signatures import KEY, SIGNATURE, TIME

INSIDE: list[str] = []


class Inside(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers everything, and remembers what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        INSIDE.append(self.path)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = body + b" from " + self.headers.get("X-Key", "").encode()
        self.send_response(500 if self.path == "/v1/fleet/fails" else 201)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("X-Told", "yes")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def inside():
    inside = ThreadingHTTPServer(("127.0.0.1", 0), Inside)
    threading.Thread(target=inside.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{inside.server_port}"
    inside.shutdown()


@contextmanager
def serving(gate_of, limits):
    """A gate in a thread of its own; give its port."""
    door, started = socket.create_server(("127.0.0.1", 0)), threading.Event()
    stop: list[object] = []

    async def serve():
        task = asyncio.create_task(run(door, gate_of(), limits))
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(task.cancel))
        started.set()
        with suppress(asyncio.CancelledError):
            await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield door.getsockname()[1]
    finally:
        stop[0]()
        thread.join(10)
        door.close()


@pytest.fixture(scope="module")
def port(inside):
    with serving(lambda: Gate(inside), Limits(body_bytes=1000)) as port:
        yield port


def ask(port, path, method="POST", body=b"hello"):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
    connection.putheader("Content-Length", str(len(body)))
    connection.putheader("X-Key", "node")
    connection.endheaders(body)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def test_a_node_gets_through(port):
    status, body, headers = ask(port, "/v1/fleet/pull-messages")
    assert (status, body, headers["X-Told"]) == (201, b"hello from node", "yes")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/",
        "/docs",
        "/openapi.json",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet//../../v1/control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
        "/v1/fleet/pull-messages;/../control",
        "/V1/CONTROL/start-run",
    ],
)
def test_nothing_else_does(port, path):
    INSIDE.clear()
    assert ask(port, path)[0] == 404
    assert INSIDE == []


def test_queries_are_not_passed_on(port):
    INSIDE.clear()
    assert ask(port, "/v1/fleet/pull-messages?x=/v1/control")[0] == 201
    assert INSIDE == ["/v1/fleet/pull-messages"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS"])
def test_other_verbs_do_not(port, method):
    INSIDE.clear()
    assert ask(port, "/v1/fleet/pull-messages", method)[0] == 404
    assert INSIDE == []


def test_a_large_request_is_refused(port):
    assert ask(port, "/v1/fleet/push-object", body=b"x" * 1001)[0] == 413
    assert ask(port, "/v1/fleet/push-object", body=b"x" * 1000)[0] == 201


def test_a_dead_superlink_is_told():
    with serving(lambda: Gate(f"127.0.0.1:{free_port()}"), Limits()) as port:
        assert ask(port, "/v1/fleet/get-run")[0] == 503


def test_a_failure_of_the_superlink_is_one_that_nodes_try_again_after(port):
    retry = pytest.importorskip("flwr.supercore.retry.http_retry")
    status, body, _ = ask(port, "/v1/fleet/fails")
    assert (status, body) == (503, b"")
    assert 503 in {int(code) for code in retry._RETRYABLE_STATUS_CODES}
    assert 500 not in retry._RETRYABLE_STATUS_CODES


def test_a_connection_serves_many_requests(port):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for k in range(3):
        connection.request("POST", "/v1/fleet/pull-messages", b"%d" % k, {"X-Key": "me"})
        assert connection.getresponse().read() == b"%d from me" % k


@pytest.fixture
def keys(tmp_path):
    make_keys(tmp_path / "keys", [], 1)
    return tmp_path / "keys"


def sign(path):
    """The headers with which Flower's node signs a request now."""
    key = load_ssh_private_key(path.read_bytes(), None)
    moment = datetime.now(UTC).isoformat().encode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    told = {KEY: b64encode(public), TIME: moment, SIGNATURE: b64encode(key.sign(moment, ec.ECDSA(hashes.SHA256())))}
    return {name.decode(): value.decode() for name, value in told.items()}


def post(port, body=b"hello", headers=None):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/fleet/pull-messages", body, headers or {})
    return connection.getresponse().status


def test_only_requests_that_a_known_node_signed_are_read_and_forwarded(inside, keys):
    with serving(lambda: Gate(inside, nodes=keys / "nodes"), Limits()) as port:
        INSIDE.clear()
        assert post(port) == 401
        assert post(port, headers={"flwr-signature": "eA==", "flwr-public-key": "eA==", "flwr-timestamp": "now"}) == 401
        with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:  # announces a body and waits
            stranger.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 59000000\r\n\r\n")
            assert stranger.recv(100).startswith(b"HTTP/1.1 401 ")
        assert INSIDE == []
        assert post(port, headers=sign(keys / "nodes" / "device-0.key")) == 201
        assert len(INSIDE) == 1


def half(port, text):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(text)
    return connection


HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


def test_nobody_hears_of_a_request_that_does_not_come_to_its_end(inside):
    limits = Limits(head_seconds=2.0, slack_seconds=2.0, least_speed=1e9)
    with serving(lambda: Gate(inside), limits) as port:
        INSIDE.clear()
        slow = [half(port, text) for text in (b"", b"POST /v1/fleet/a HT", HEAD, HEAD + b"some")]
        assert post(port) == 201
        told = [connection.recv(100) for connection in slow]
        assert [text[:12] for text in told] == [b"", b"", b"HTTP/1.1 408", b"HTTP/1.1 408"]
        assert INSIDE == ["/v1/fleet/pull-messages"]


def test_strangers_are_bounded_and_nodes_go_on(inside, keys):
    limits = Limits(strangers=20, strangers_per_address=10, head_seconds=30.0)
    with serving(lambda: Gate(inside, nodes=keys / "nodes"), limits) as port:
        node = HTTPConnection("127.0.0.1", port, timeout=60)
        slow = []
        for _ in range(25):
            slow.append(half(port, b"POST /v1/fleet/a HTTP/1.1\r\n"))
            node.request("POST", "/v1/fleet/pull-messages", b"", sign(keys / "nodes" / "device-0.key"))
            answer = node.getresponse()
            assert (answer.status, answer.read()) == (201, b" from ")
        assert post(port, headers=sign(keys / "nodes" / "device-0.key")) == 201  # and newcomers come in
        ended = 0
        for connection in slow:
            connection.settimeout(0.2)
            with suppress(TimeoutError):
                ended += connection.recv(1) == b""
        assert 12 <= ended <= 16


def test_bodies_are_bounded_together(inside):
    limits = Limits(body_bytes=1000, held_bytes=250, held_per_sender=250)
    with serving(lambda: Gate(inside), limits) as port:
        slow = [half(port, HEAD), half(port, HEAD)]
        until = time.monotonic() + 60
        while (answer := post(port, b"x" * 51)) == 201 and time.monotonic() < until:  # it has not read both heads yet
            time.sleep(0.05)
        assert answer == 503
        assert post(port, b"x" * 50) == 201
        slow[0].sendall(b"x" * 100)
        assert slow[0].recv(100).startswith(b"HTTP/1.1 201")
        assert post(port, b"x" * 150) == 201


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 411"),
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 411"),
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", b"HTTP/1.1 413"),
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b""),
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b""),
        (b"POST /v1/fleet/a HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 40_000, b""),
        (b"GET /" + b"y" * 40_000, b""),
        (b"\x16\x03\x01" + b"\0" * 100, b""),
    ],
)
def test_lengths_are_checked_first(port, text, status):
    INSIDE.clear()
    with half(port, text) as connection:
        assert connection.recv(100)[:12] == status
    assert INSIDE == []


def test_every_call_a_node_makes_passes():
    router = pytest.importorskip("flwr.superlink.routers.fleet.router").router
    paths = [route.path for route in router.routes]
    assert len(paths) > 5
    assert all(passes("POST", path.encode()) for path in paths)
