"""The control API asks for the token, and no other app is started even with it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from fastapi.testclient import TestClient
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.dependencies.account import AccountAccessDependency
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from fedctta.errors import UserError
from fedctta.fleet import flower
from fedctta.fleet.transport import superlink
from fedctta.fleet.transport.app_bundle import APP, build_bundle

TOKEN = "t" * 64
PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}


@pytest.fixture
def client(monkeypatch):
    """Flower's whole application, locked."""
    command = import_module("flwr.superlink.cli.flower_superlink")
    handlers = import_module("flwr.superlink.servicer.control.control_handlers")
    monkeypatch.setattr(command, "load_control_authn_plugin", command.load_control_authn_plugin)
    monkeypatch.setattr(handlers, "Fab", handlers.Fab)
    assert superlink.lock(TOKEN, build_bundle(), {"fedctta": "{}"}) is command.flower_superlink
    app = import_module("flwr.superlink.main").create_app()
    app.state.account_access_dep = AccountAccessDependency(command.load_control_authn_plugin())
    return TestClient(app)


def ask(client, path, request, token=None):
    headers = PROTOBUF if token is None else {**PROTOBUF, "authorization": f"Bearer {token}"}
    return client.post(f"/v1/control/{path}", content=request.SerializeToString(), headers=headers)


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("x" * 64, 401), (TOKEN[:-1], 401), (TOKEN, 200)])
def test_only_the_holder_of_the_token_gets_in(client, token, status):
    assert ask(client, "list-runs", ListRunsRequest(), token).status_code == status


def start(bundle):
    return StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})))


def test_only_the_fleets_app_is_started(client):
    foreign = build_fab_from_files({"pyproject.toml": APP.replace("fedctta-fleet", "evil").encode()})[0]
    assert ask(client, "start-run", start(build_bundle())).status_code == 401
    assert ask(client, "start-run", start(foreign), TOKEN).status_code == 412
    assert not ask(client, "list-runs", ListRunsRequest(), TOKEN).content.count(b"evil")
    assert ask(client, "start-run", start(build_bundle()), TOKEN).status_code == 200


def test_the_app_is_kept_with_its_signature():
    record = superlink.only(b"app", {"fedctta": "signed"})
    assert record(hashlib.sha256(b"app").hexdigest(), b"app", {}).verifications == {"fedctta": "signed"}
    with pytest.raises(FlowerError, match="own app only"):
        record(hashlib.sha256(b"evil").hexdigest(), b"evil", {"fedctta": "signed"})


def test_nobody_is_given_a_token():
    plugin = superlink.TokenOnly(TOKEN)
    assert plugin.refresh_tokens([]) == (None, None)
    with pytest.raises(FlowerError):
        plugin.get_auth_tokens("")
    with pytest.raises(UserError, match="too short"):
        superlink.TokenOnly("")


def test_another_flower_is_refused_rather_than_left_open(monkeypatch):
    monkeypatch.delattr("flwr.superlink.servicer.control.control_handlers.Fab")
    command = import_module("flwr.superlink.cli.flower_superlink")
    monkeypatch.setattr(command, "load_control_authn_plugin", None)
    with pytest.raises(UserError, match=r"has no .*Fab"):
        superlink.lock(TOKEN, b"app", {})


@pytest.fixture
def pulled(monkeypatch):
    """Flower's own function with parts held back, and which questions it was asked about."""
    handlers, asked = import_module("flwr.superlink.main").runtime_handlers, []
    monkeypatch.setattr(handlers, "pull_messages", lambda request, *rest: asked.append(sorted(request.message_ids)))
    superlink.hold_parts_back()
    engine = create_engine("sqlite://")
    for table in (flower.MessageRes, flower.ObjectPushSession):
        table.metadata.create_all(engine)
    state = SimpleNamespace(session=lambda: Session(engine))
    return SimpleNamespace(pull=handlers.pull_messages, state=state, engine=engine, asked=asked)


def test_answers_of_which_a_part_is_still_to_come_are_held_back(pulled):
    soon = datetime.now(UTC) + timedelta(seconds=100)
    uploads = {"coming": (soon, 2), "whole": (soon, 0), "given-up": (datetime.now(UTC), 1)}
    with Session(pulled.engine) as session:
        for name, (until, pending) in uploads.items():
            session.add(flower.MessageRes(message_id=f"answer-{name}", reply_to_message_id=name))
            session.add(flower.ObjectPushSession(session_id=name, run_id=1, expires_at=until, pending_count=pending))
            session.flush()
            session.add(flower.ObjectPushSessionRoot(session_id=name, root_object_id=f"answer-{name}"))
        session.add(flower.MessageRes(message_id="answer-done", reply_to_message_id="done"))
        session.commit()
    request = PullAppMessagesRequest(message_ids=[*uploads, "done", "silent"])
    pulled.pull(request, pulled.state, None)
    with Session(pulled.engine) as session:
        session.query(flower.ObjectPushSession).update({"pending_count": 0})
        session.commit()
    pulled.pull(request, pulled.state, None)
    assert pulled.asked == [["done", "given-up", "silent", "whole"], ["coming", "done", "given-up", "silent", "whole"]]


def test_another_flower_may_keep_its_books_in_another_way(monkeypatch):
    handlers = import_module("flwr.superlink.main").runtime_handlers
    own = handlers.pull_messages
    monkeypatch.delitem(flower.__dict__, "ObjectPushSession", raising=False)
    monkeypatch.setitem(flower._HOME, "ObjectPushSession", "flwr.nowhere")
    superlink.hold_parts_back()
    assert handlers.pull_messages is own
