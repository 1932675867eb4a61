"""What is asked of Flower's control API, and what its answers mean."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("flwr")

from flwr.proto.control_pb2 import ListNodesResponse, ListRunsResponse, RegisterNodeResponse, StartRunResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus

from fedctta.errors import UserError
from fedctta.fleet.processes.flower_command import Flower, make_token
from fedctta.fleet.processes.process_specs import Link
from fedctta.fleet.transport.app_bundle import build_bundle


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """A Flower whose answers are given, and that notes what it was asked."""
    asked, answers = [], []

    def send(client, request, **options):
        asked.append(request)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer.SerializeToString())
        return httpx.Response(status, content=body, request=request)

    monkeypatch.setattr(httpx.Client, "send", send)
    make_token(tmp_path)
    return SimpleNamespace(flower=Flower(Link("::1", 9093, None), tmp_path), asked=asked, answers=answers)


def test_the_token_is_new_every_time_and_nobody_elses(tmp_path):
    home = tmp_path / "home"
    first = make_token(home).read_text()
    token = make_token(home)
    assert token.read_text() != first
    assert len(first) == 64
    assert (token.stat().st_mode & 0o777, home.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_run_is_submitted_with_the_token_and_the_app(flower, tmp_path):
    flower.answers += [StartRunResponse(run_id=12)]
    assert flower.flower.submit(tmp_path / "fleet.toml") == "12"
    (request,) = flower.asked
    assert str(request.url) == "http://[::1]:9093/v1/control/start-run"
    assert request.headers["authorization"] == "Bearer " + (tmp_path / "control.token").read_text()
    assert build_bundle() in request.content
    assert str(tmp_path / "fleet.toml").encode() in request.content


@pytest.mark.parametrize(
    ("answer", "reason"), [((401, b"no\nroom"), "401 no room"), (httpx.ConnectError("no host"), "no host")]
)
def test_a_run_that_cannot_be_started_is_told(flower, answer, reason):
    flower.answers += [answer]
    with pytest.raises(UserError, match=f"the run cannot be started: {reason}; see the SuperLink's log"):
        flower.flower.submit(Path("fleet.toml"))


def test_nodes_come_and_go(flower):
    info = [NodeInfo(node_id=1, public_key=b"a", status="online"), NodeInfo(node_id=2, status="unregistered")]
    flower.answers += [RegisterNodeResponse(node_id=1), ListNodesResponse(nodes_info=info), StartRunResponse()]
    assert flower.flower.register(b"a", "cam") == 1
    assert flower.flower.nodes() == {b"a": 1}
    flower.flower.unregister(1)
    assert [request.url.path.rsplit("/")[-1] for request in flower.asked] == [
        "register-node",
        "list-nodes",
        "unregister-node",
    ]
    flower.answers += [(400, b"bad key")]
    with pytest.raises(UserError, match="cam is not let in: 400 bad key"):
        flower.flower.register(b"x", "cam")


@pytest.mark.parametrize(
    ("answer", "running"),
    [
        (ListRunsResponse(run_dict={12: Run(status=RunStatus(status="running"))}), True),
        (ListRunsResponse(run_dict={12: Run(status=RunStatus(status="finished"))}), False),
        (ListRunsResponse(), True),
        (httpx.ConnectError("no host"), True),
    ],
)
def test_a_run_goes_on_until_it_is_known_to_have_ended(flower, answer, running):
    flower.answers += [answer]
    assert flower.flower.running("12") == running
