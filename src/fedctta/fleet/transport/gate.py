"""The only server that other machines can reach: it passes nodes' requests to the SuperLink, and nothing else.

A SuperLink serves three groups of calls at one port. Nodes need `/v1/fleet/`. Anyone who reaches `/v1/control/` can
run code on every node, and `/v1/runtime/` is for the server's own processes; Flower asks for no password for either.
The SuperLink therefore listens on loopback, and this small server in front of it, or a reverse proxy set up by
`nginx_config`, lets exactly these requests pass:

    POST /v1/fleet/<words of a-z and ->        of at most 64 MiB

Run as `python -m fedctta.fleet.transport.gate HOST PORT SUPERLINK [KEYS]`.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedctta.errors import UserError

LIMIT = 64 << 20
"""Bytes of one request; Flower cuts larger arrays into pieces below it."""

_ALLOWED = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def passes(method: str, raw_path: bytes) -> bool:
    """Whether a request is one of a node's.

    >>> passes("POST", b"/v1/fleet/pull-messages"), passes("POST", b"/v1/fleet/../control/start-run")
    (True, False)
    """
    return method == "POST" and _ALLOWED.fullmatch(raw_path) is not None


class TooLarge(Exception):
    """A request of more bytes than are let in."""


class Gate:
    """An ASGI application that forwards to `upstream` what `passes`. Other requests never leave this process."""

    def __init__(self, upstream: str, trust: Path | None = None, limit: int = LIMIT) -> None:
        try:
            import httpx
        except ImportError as error:
            raise UserError("the gate needs what comes with Flower: pip install 'fedctta[fleet]'") from error
        verify = True if trust is None else ssl.create_default_context(cafile=str(trust))
        scheme = "http" if trust is None else "https"
        self._limit = limit
        self._client = httpx.AsyncClient(base_url=f"{scheme}://{upstream}", verify=verify, timeout=120, trust_env=False)
        self._failures = httpx.HTTPError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] != "http" or not passes(scope["method"], scope.get("raw_path") or b""):
            await _answer(send, 404)
        else:
            await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP]
        path = scope["raw_path"].decode("ascii")
        request = self._client.build_request("POST", path, headers=headers, content=_body(receive, self._limit))
        try:
            response = await self._client.send(request, stream=True)
        except TooLarge:
            await _answer(send, 413)
            return
        except self._failures:
            await _answer(send, 502)
            return
        kept = [(n.lower(), v) for n, v in response.headers.raw if n.lower() not in _HOP_BY_HOP]
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
        try:
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            await response.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _live(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _body(receive: Receive, limit: int) -> AsyncIterator[bytes]:
    more, size = True, 0
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise TooLarge
        yield message.get("body", b"")
        more = bool(message.get("more_body", False)) and message["type"] != "http.disconnect"


async def _answer(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def nginx_config(host: str, port: int, upstream: str, keys: Path) -> str:
    """Return a server block for nginx that lets pass what `passes` does."""
    return f"""\
# Only what nodes need; the SuperLink itself listens on loopback.
server {{
    listen {host}:{port} ssl;
    ssl_certificate     {keys / "server.crt"};
    ssl_certificate_key {keys / "server.key"};
    ssl_protocols       TLSv1.2 TLSv1.3;
    client_max_body_size {LIMIT >> 20}m;

    location ~ "^/v1/fleet/[a-z]+(-[a-z]+)*$" {{
        limit_except POST {{ deny all; }}
        proxy_pass https://{upstream};
        proxy_http_version 1.1;
        proxy_ssl_trusted_certificate {keys / "ca.crt"};
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_read_timeout 120s;
        proxy_request_buffering off;
    }}
    location / {{ return 404; }}
}}
"""


def main(words: list[str]) -> None:
    """Serve the gate until it is ended."""
    import uvicorn

    host, port, upstream, *rest = words
    keys = Path(rest[0]) if rest else None
    files = {} if keys is None else {"ssl_certfile": str(keys / "server.crt"), "ssl_keyfile": str(keys / "server.key")}
    uvicorn.run(
        Gate(upstream, None if keys is None else keys / "ca.crt"),
        host=host,
        port=int(port),
        access_log=False,
        server_header=False,
        ws="none",
        **files,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main(sys.argv[1:])
