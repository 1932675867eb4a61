"""A fleet of real processes behind a real nginx, with the configuration that `fedctta fleet proxy` prints."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from http.client import HTTPSConnection
from pathlib import Path

import pytest

pytest.importorskip("flwr")
sys.path.insert(0, str(Path(__file__).parent))

from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from ordeal import Ordeal

from fedctta.fleet.processes import process_specs
from fedctta.fleet.processes.process_specs import ProcessSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("alone"),
    pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx"),
]


def nginx(folder):
    """Return what starts nginx where the gate is started otherwise; all its files lie in `folder`."""
    folder.mkdir()

    def part(host, port, link):
        words = ("--keys", str(link.keys), "--listen", f"{host}:{port}", "--superlink", link.address)
        command = (sys.executable, "-m", "fedctta", "fleet", "proxy", *words)
        (folder / "fleet.conf").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        who = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(
            f"daemon off;\n{who}\npid {folder}/pid;\nerror_log stderr warn;\nevents {{}}\n"
            f"http {{\naccess_log {folder}/access.log;\n{places}\ninclude {folder}/fleet.conf;\n}}\n"
        )
        return ProcessSpec("gate", (shutil.which("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")))

    return part


def ask(fleet, method, path, size=0, **headers):
    """Ask nginx; return the status of its answer."""
    trust = ssl.create_default_context(cafile=str(fleet.keys / "ca.crt"))
    connection = HTTPSConnection("127.0.0.1", fleet.outside.port, timeout=20, context=trust)
    connection.putrequest(method, path)
    for name, value in {"Content-Length": str(size), **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse().status


def test_a_fleet_behind_nginx(tmp_path, monkeypatch):
    monkeypatch.setattr(process_specs, "gate", nginx(tmp_path / "nginx"))
    signed = {"flwr_signature": "x", "flwr_public_key": "y", "Content-Type": PROTOBUF_MEDIA_TYPE}

    def story(fleet):
        fleet.start_node("stranger")
        yield from fleet.until_round(1)
        for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/v1/control/start-run", "/docs", "/"):
            assert ask(fleet, "POST", path, **signed) == 404
        assert ask(fleet, "POST", "/v1/fleet/../control/list-runs", **signed) == 404
        assert ask(fleet, "GET", "/v1/fleet/pull-messages", **signed) == 403
        assert ask(fleet, "POST", "/v1/fleet/pull-messages") == 401  # without a signature
        assert ask(fleet, "POST", "/v1/fleet/pull-messages", **signed) in (400, 401, 403)  # the SuperLink's answer
        assert ask(fleet, "POST", "/v1/fleet/push-messages", 65 << 20, **signed) == 413
        yield from fleet.until(lambda: fleet.supervisor.tended["node-stranger"].deaths, "the end of the stranger")
        yield from fleet.all_counted()
        yield from fleet.kill("gate")
        yield from fleet.all_counted()

    fleet = Ordeal(tmp_path, devices=2)
    fleet.tell(story)
    fleet.check()
    assert fleet.refusals() == []
    assert "SuperNode ID" not in (tmp_path / "logs" / "node-stranger.log").read_text()
    passed = [line for line in (tmp_path / "nginx" / "access.log").read_text().splitlines() if "push-messages" in line]
    assert sum('" 200 ' in line for line in passed) >= 2 * fleet.round
    print(f"{fleet.round} rounds of two devices over {subprocess.getoutput('nginx -v')}")
