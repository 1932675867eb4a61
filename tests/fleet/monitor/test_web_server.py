"""The page's server only reads, only answers this machine, and cannot be held up."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from fedctta.errors import UserError
from fedctta.fleet.monitor import web_server
from fedctta.fleet.monitor.web_server import WebServer

SEEN = {"round": 3, "nodes": [], "history": [], "audit": {"lines": 0, "breaks": []}}


@contextmanager
def serving(observe=lambda: SEEN, host="127.0.0.1"):
    with WebServer(host, 0, observe) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port, path="/", method="GET", **headers):
    visitor = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    visitor.request(method, path, headers=headers)
    answer = visitor.getresponse()
    return answer, answer.read()


def test_the_page_its_parts_and_the_figures_are_served():
    with serving() as port:
        for path, kind, piece in (
            ("/", "text/html", b"<h1"),
            ("/page.js", "text/javascript", b"/status.json"),
            ("/page.css?x=1", "text/css", b"prefers-color-scheme"),
            ("/metrics", "text/plain; version=0.0.4", b"fedctta_rounds_closed_total 3"),
        ):
            answer, content = ask(port, path)
            assert (answer.status, answer.headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
            assert piece in content
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert json.loads(ask(port, "/status.json")[1]) == SEEN


def test_nothing_else_is_served_and_nothing_is_taken():
    with serving() as port:
        for path in ("/status", "/../status.json", "/page/page.js", "//etc/passwd", "/%2e%2e/pyproject.toml"):
            assert ask(port, path)[0].status == 404
        for method in ("POST", "PUT", "DELETE"):
            assert ask(port, "/status.json", method)[0].status == 501
        answer, content = ask(port, "/status.json", "HEAD")
        assert (answer.status, content) == (200, b"")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:9", 200),
        ("evil.example", 421),
        ("", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_a_web_site_cannot_read_it_through_a_name_of_its_own(host, status):
    with serving() as port:
        assert ask(port, "/status.json", Host=host)[0].status == status


def test_who_serves_others_answers_to_any_name():
    with serving(host="0.0.0.0") as port:
        assert ask(port, "/status.json", Host="fleet.example.org")[0].status == 200


def test_visitors_at_once_look_once(monkeypatch):
    looks = []
    monkeypatch.setattr(web_server, "FRESH", 60.0)
    with serving(lambda: looks.append(1) or SEEN) as port:
        for _ in range(3):
            ask(port, "/metrics")
    assert len(looks) == 1


def test_connections_that_say_nothing_do_not_hold_it_up(monkeypatch):
    monkeypatch.setattr(web_server, "AT_ONCE", 4)
    monkeypatch.setattr(web_server.Handler, "timeout", 0.3)
    with serving() as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        closed = [connection for connection in idle[4:] if connection.recv(1) == b""]
        assert len(closed) == 16  # at once
        assert idle[0].recv(1) == b""  # after the timeout
        for connection in idle:
            connection.close()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                answer = ask(port)[0]
                break
            except (ConnectionError, http.client.HTTPException):
                time.sleep(0.05)
        assert answer.status == 200


def test_a_place_that_is_taken_is_refused():
    with serving() as port, pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}"):
        WebServer("127.0.0.1", port, dict)
