"""Nodes get through; control and runtime calls do not, however they are spelt."""

from __future__ import annotations

import asyncio
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import uvicorn

from fedctta.fleet.processes.process_specs import free_port
from fedctta.fleet.transport.gate import Gate, nginx_config, passes

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
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("X-Told", "yes")
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def port():
    inside = ThreadingHTTPServer(("127.0.0.1", 0), Inside)
    threading.Thread(target=inside.serve_forever, daemon=True).start()
    port = free_port()
    app = Gate(f"127.0.0.1:{inside.server_port}", limit=1000)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started and time.monotonic() < until:
        time.sleep(0.02)
    yield port
    server.should_exit = True
    thread.join(10)
    inside.shutdown()


def ask(port, path, method="POST", body=b"hello"):
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
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


def test_a_dead_superlink_is_told(port):
    own = free_port()
    server = uvicorn.Server(uvicorn.Config(Gate(f"127.0.0.1:{free_port()}"), port=own, log_level="error", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    assert ask(own, "/v1/fleet/get-run")[0] == 502
    server.should_exit = True
    thread.join(10)


def test_every_call_a_node_makes_passes():
    router = pytest.importorskip("flwr.superlink.routers.fleet.router").router
    paths = [route.path for route in router.routes]
    assert len(paths) > 5
    assert all(passes("POST", path.encode()) for path in paths)


def test_nginx_says_the_same():
    text = nginx_config("0.0.0.0", 9092, "127.0.0.1:8080", Path("/keys"))
    assert "listen 0.0.0.0:9092 ssl;" in text
    assert "location / { return 404; }" in text
    assert "proxy_pass https://127.0.0.1:8080;" in text
    assert text.count("{") == text.count("}")
