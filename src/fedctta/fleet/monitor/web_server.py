"""The page of a fleet: a small server that only reads. It has no password, so it is for this machine alone.

/               the page, which asks for /status.json every two seconds
/status.json    what `fedctta fleet status --json` prints
/metrics        for Prometheus

On loopback it answers only those who ask for this machine by its own names: otherwise any web site could read it
through a name of its own that leads here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socket import AF_INET, AF_INET6, socket
from typing import Any

from fedctta.errors import UserError, reason
from fedctta.fleet.monitor.metrics import write_metrics
from fedctta.fleet.processes.process_specs import is_loopback

AT_ONCE = 32  # connections; more are closed
SECONDS = 10  # that a connection may keep silent
FRESH = 0.5  # seconds for which an observation is used again
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class WebServer(ThreadingHTTPServer):
    """Serves what `observe` returns."""

    daemon_threads = True
    request_queue_size = 2 * AT_ONCE

    def __init__(self, host: str, port: int, observe: Callable[[], dict[str, Any]]) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.local = is_loopback(host)
        self._observe, self._lock = observe, threading.Lock()
        self._seen: dict[str, Any] = {}
        self._when = -FRESH
        self._places = threading.BoundedSemaphore(AT_ONCE)
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(f"cannot listen at {host}:{port}: {reason(error)}; choose another --listen") from error

    def observe(self) -> dict[str, Any]:
        """Look at the fleet, unless somebody just has."""
        with self._lock:
            if time.monotonic() - self._when >= FRESH:
                self._seen, self._when = self._observe(), time.monotonic()
            return self._seen

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, if there are not too many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A visitor who leaves early is no event."""


class Handler(BaseHTTPRequestHandler):
    """Answers one visitor."""

    server: WebServer
    timeout = SECONDS
    server_version, sys_version = "fedctta", ""

    def do_GET(self) -> None:
        """Answer with the page, its parts, the status or the figures."""
        if self.server.local and not is_loopback(_host(self.headers.get("Host", ""))):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "ask for 127.0.0.1 or localhost")
            return
        path = self.path.partition("?")[0]
        if path in PAGE:
            name, kind = PAGE[path]
            self._send((files(__package__) / "page" / name).read_bytes(), kind)
        elif path == "/status.json":
            self._send(json.dumps(self.server.observe()).encode(), "application/json")
        elif path == "/metrics":
            self._send(write_metrics(self.server.observe()).encode(), "text/plain; version=0.0.4")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Visits are no events."""


def _host(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> _host("localhost:9095"), _host("[::1]:9095"), _host("127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    """
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
