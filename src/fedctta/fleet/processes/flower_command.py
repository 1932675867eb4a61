"""Flower's command line, as far as a fleet needs it: nodes are registered, runs are submitted and looked at."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.fleet.processes.process_specs import Link, environment, executable

NAME = "fleet"
TIMEOUT = 60.0

APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedctta-fleet"
version = "1.0.0"
description = "Federated continual test-time adaptation on a fleet of devices"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedctta"

[tool.flwr.app.components]
serverapp = "fedctta.fleet.server.server_app:app"
clientapp = "fedctta.fleet.transport.client_app:app"

[tool.flwr.app.config]
plan = ""
"""


class Flower:
    """Speaks to one SuperLink through `flwr`, with a home folder of its own."""

    def __init__(self, link: Link, home: Path) -> None:
        self._home, self._app = home, home / "app"
        trust = "insecure = true" if link.keys is None else f'root-certificates = "{link.keys.resolve() / "ca.crt"}"'
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\naddress = "{link.address}"\n{trust}\n'
        for path, text in ((home / "config.toml", config), (self._app / "pyproject.toml", APP)):
            with whole(path) as part:
                part.write_text(text, encoding="utf-8")

    def register(self, public_key: Path) -> None:
        """Let the holder of a key take part."""
        answer = self._call("supernode", "register", str(public_key.resolve()), NAME, "--name", public_key.stem)
        if not answer.get("success") and "already" not in str(answer).lower():
            raise UserError(f"{public_key} cannot be registered: {_reason(answer)}; see the SuperLink's log")

    def submit(self, plan: Path) -> str:
        """Start a run of the plan and return its id."""
        answer = self._call("run", str(self._app.resolve()), NAME, "--run-config", f'plan="{plan.resolve()}"')
        if not answer.get("success"):
            raise UserError(f"the run cannot be started: {_reason(answer)}; see the SuperLink's log")
        return str(answer["run-id"])

    def running(self, run: str) -> bool:
        """Whether a run is under way or about to be; also if the SuperLink cannot be asked now."""
        answer = self._call("list", NAME, "--run-id", run)
        runs = answer.get("runs") or []
        return not runs or not str(runs[0].get("status", "")).startswith("finished")

    def _call(self, *words: str) -> dict[str, Any]:
        try:
            done = subprocess.run(
                (executable("flwr"), *words, "--format", "json"),
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                env={**os.environ, **environment(self._home)},
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"error-message": f"flwr {words[0]} took more than {TIMEOUT:.0f} s"}
        start = done.stdout.find("{")
        try:
            answer = json.loads(done.stdout[start:]) if start >= 0 else {}
        except ValueError:
            answer = {}
        return answer if isinstance(answer, dict) and answer else {"error-message": (done.stderr or done.stdout)[-300:]}


def _reason(answer: dict[str, Any]) -> str:
    return " ".join(str(answer.get("error-message", answer)).split())
