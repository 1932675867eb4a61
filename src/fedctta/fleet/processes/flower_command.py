"""Flower's control API, as far as a fleet needs it: nodes are registered and removed, runs are submitted and looked at.

The SuperLink lets only the holder of a token in (`transport.superlink`). It lies in a file that the server's user alone
can read, and is new with every start.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedctta.errors import UserError
from fedctta.fleet import flower
from fedctta.fleet.processes.process_specs import TOKEN, Link
from fedctta.fleet.transport.app_bundle import read_bundle

if TYPE_CHECKING:
    from fedctta.fleet.processes.keyring import Keyring

T = TypeVar("T")


def make_token(home: Path) -> Path:
    """Write a new token; return its file. The folder, which also holds Flower's database, becomes private."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    path = home / TOKEN
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32))
    return path


class Flower:
    """Speaks to one SuperLink whose token lies in `home`."""

    def __init__(self, link: Link, home: Path) -> None:
        self._link, self._home = link, home
        self.keyring: Keyring | None = None
        read_bundle(link.keys)  # says now what is missing

    def register(self, key: bytes, name: str) -> int:
        """Let the holder of a key take part; return its node."""
        answer = self._call(
            "RegisterNode", flower.RegisterNodeRequest(public_key=key, name=name), f"{name} is not let in"
        )
        return int(answer.node_id)

    def unregister(self, node: int) -> None:
        """Let a node no longer take part; its key is not let in again."""
        self._call("UnregisterNode", flower.UnregisterNodeRequest(node_id=node), f"node {node} cannot be removed")

    def nodes(self) -> dict[bytes, int]:
        """Return the nodes that may take part, by their public keys."""
        answer = self._call("ListNodes", flower.ListNodesRequest(), "the nodes cannot be listed")
        return {bytes(n.public_key): int(n.node_id) for n in answer.nodes_info if n.status != "unregistered"}

    def submit(self, plan: Path) -> str:
        """Start a run of the plan and return its id."""
        bundle, _ = read_bundle(self._link.keys)
        app = flower.fab_to_proto(flower.Fab(hashlib.sha256(bundle).hexdigest(), bundle, {}))
        request = flower.StartRunRequest(
            fab=app, override_config=flower.user_config_to_proto({"plan": str(plan.resolve())})
        )
        return str(self._call("StartRun", request, "the run cannot be started").run_id)

    def running(self, run: str) -> bool:
        """Whether a run is under way or about to be; also if the SuperLink cannot be asked now."""
        try:
            runs = self._call("ListRuns", flower.ListRunsRequest(run_id=int(run)), "").run_dict
        except UserError:
            return True
        return not runs or next(iter(runs.values())).status.status != "finished"

    def _call(self, method: str, request: Any, failure: str) -> Any:
        import httpx

        keys = self._link.keys
        try:
            token = (self._home / TOKEN).read_text(encoding="ascii").strip()
            client = flower.ControlHttpClient.from_server_address(
                self._link.address,
                keys is None,
                None if keys is None else str(keys / "ca.crt"),
                [flower.RuntimeVersionHttpInterceptor("flwr CLI"), _Bearer(token)],
            )
            try:
                return getattr(client, method)(request)
            finally:
                client.close()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise UserError(f"{failure}: {_reason(error)}; see the SuperLink's log") from error


class _Bearer:
    """Shows the token with every request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], T]) -> T:
        context.request.headers["Authorization"] = f"Bearer {self._token}"
        return call_next(context)


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    return " ".join(str(error if response is None else f"{response.status_code} {response.text[:300]}").split())
