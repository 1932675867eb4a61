"""The only server that other machines can reach: it passes nodes' requests to the SuperLink, and nothing else.

A SuperLink serves three groups of calls at one port. Nodes need `/v1/fleet/`. Anyone who reaches `/v1/control/` can
run code on every node, and `/v1/runtime/` is for the server's own processes; Flower asks for no password for either.
The SuperLink therefore listens on loopback, and this small server in front of it, or a reverse proxy (see `nginx`),
lets exactly these requests pass:

    POST /v1/fleet/<words of a-z and ->        of at most 64 MiB, signed by a node whose public key lies in KEYS/nodes

A request is judged by its head and read whole, within the bounds of `bounded_server`, before the SuperLink hears of it.

Run as `python -m fedctta.fleet.transport.gate HOST PORT SUPERLINK [KEYS]`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import signal
import socket
import ssl
import sys
from contextlib import suppress
from pathlib import Path

from fedctta.errors import UserError
from fedctta.fleet.transport.bounded_server import BoundedServer, Refusal, Reply, Request
from fedctta.fleet.transport.limits import Limits
from fedctta.fleet.transport.node_signatures import NodeSignatures

log = logging.getLogger("fedctta.fleet")

FILES = 4096  # that may be open at one time: connections to both sides
REPORT = 60.0  # seconds between two lines about refused requests

_ALLOWED = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"expect"}
_OURS = {b"content-length", b"date", b"server"}


def passes(method: str, path: bytes) -> bool:
    """Whether a request is one of a node's.

    >>> passes("POST", b"/v1/fleet/pull-messages"), passes("POST", b"/v1/fleet/../control/start-run")
    (True, False)
    """
    return method == "POST" and _ALLOWED.fullmatch(path) is not None


class Gate:
    """Judges requests, and forwards to `upstream` what passes. Other requests never leave this process."""

    def __init__(self, upstream: str, trust: Path | None = None, nodes: Path | None = None) -> None:
        try:
            import httpx
        except ImportError as error:
            raise UserError("the gate needs what comes with Flower: pip install 'fedctta[fleet]'") from error
        verify = True if trust is None else ssl.create_default_context(cafile=str(trust))
        scheme = "http" if trust is None else "https"
        self._signatures = None if nodes is None else NodeSignatures(nodes)
        self._client = httpx.AsyncClient(base_url=f"{scheme}://{upstream}", verify=verify, timeout=120, trust_env=False)
        self._failures = httpx.HTTPError

    def judge(self, request: Request) -> str:
        """Return who sends a request; refuse one that no node would send, or that no known node has signed."""
        if not passes(request.method, _path(request)):
            raise Refusal(404)
        if self._signatures is None:  # without keys, on loopback
            return ""
        sender = self._signatures.signer(dict(request.headers))
        if sender is None:
            raise Refusal(401)
        return sender

    async def serve(self, request: Request) -> Reply:
        """Forward one request, and return the answer."""
        headers = [(name, value) for name, value in request.headers if name not in _HOP_BY_HOP]
        try:
            answer = await self._client.post(_path(request).decode("ascii"), headers=headers, content=request.body)
        except self._failures:
            return 503, [], b""  # not 502, after which nodes of Flower 1.40 give up
        if answer.status_code == 500:
            # Its disk is full, say. After a 500 Flower's node sends no heartbeat ever again, and is called absent for
            # good though it lives; after a 503 it tries again.
            return 503, [], b""
        kept = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() not in _HOP_BY_HOP | _OURS]
        return answer.status_code, [h for h in kept if h[0] != b"content-encoding"], answer.content

    async def close(self) -> None:
        """End the connections to the SuperLink."""
        await self._client.aclose()


def _path(request: Request) -> bytes:
    return request.target.partition(b"?")[0]


async def _report(server: BoundedServer) -> None:
    """Write a line about what was refused, once in a while: a log that strangers write must not grow with them."""
    while True:
        await asyncio.sleep(REPORT)
        if server.refused:
            told = ", ".join(
                f"{count} with {status or 'no answer'}" for status, count in sorted(server.refused.items())
            )
            log.warning("refused within %.0f s: %s; %d connections", REPORT, told, len(server.guests))
            server.refused.clear()


async def run(door: socket.socket, gate: Gate, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
    """Serve until cancelled."""
    server = BoundedServer(gate.judge, gate.serve, limits, tls)
    reports = asyncio.create_task(_report(server))
    try:
        await server.listen(door)
    finally:
        reports.cancel()
        await gate.close()


async def _main(host: str, port: int, upstream: str, keys: Path | None) -> None:
    tls = None
    if keys is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(keys / "server.crt", keys / "server.key")
    gate = Gate(upstream, None, None) if keys is None else Gate(upstream, keys / "ca.crt", keys / "nodes")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=512) as door:
        serving = asyncio.create_task(run(door, gate, Limits(), tls))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        log.info("the gate is running on %s:%d for %s", host, port, upstream)
        with suppress(asyncio.CancelledError):
            await serving


def main(words: list[str]) -> None:
    """Serve the gate until it is ended."""
    host, port, upstream, *rest = words
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    asyncio.run(_main(host, int(port), upstream, Path(rest[0]) if rest else None))


if __name__ == "__main__":
    main(sys.argv[1:])
