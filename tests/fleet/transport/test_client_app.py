"""The ClientApp carries bytes, at once, without loading what it does not need."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.transport.client_app import RECORD, app, ask_device
from fedctta.fleet.transport.wire import Parcel, pack, unpack


@pytest.fixture(autouse=True)
def identity():
    """Flower's processes are told who they are when they start; a message cannot be made before."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0


def message(parcel: Parcel, kind: str) -> Message:
    content = RecordDict({RECORD: ArrayRecord({RECORD: Array(pack(parcel))})})
    return Message(content, dst_node_id=1, message_type=kind)


def carried(parcel: Parcel, kind: str, **config: str | float) -> Parcel:
    context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
    reply = app(message(parcel, kind), context)
    record = reply.content.array_records[RECORD]
    assert list(record) == [RECORD]
    return unpack(record[RECORD].numpy(), 1 << 20)


@pytest.mark.parametrize(("kind", "parcel"), [("query", Parcel("hello", 3)), ("train.step", Parcel("step", 4))])
def test_requests_reach_the_device_and_replies_come_back(tmp_path, kind, parcel):
    def answer(request: Parcel) -> Parcel:
        return Parcel("upload", request.round, {"was": request.kind}, {"own.w": np.ones(3, np.float32)})

    with SocketServer(tmp_path / "s", answer):
        reply = carried(parcel, kind, device=str(tmp_path / "s"))
    assert (reply.kind, reply.round, reply.note["was"]) == ("upload", parcel.round, parcel.kind)
    assert reply.arrays["own.w"].tolist() == [1, 1, 1]


def test_a_dead_device_is_answered_for_at_once(tmp_path):
    reply = carried(Parcel("step", 5, {"nonce": "n"}), "train.step", device=str(tmp_path / "nobody"), timeout=1e6)
    assert (reply.kind, reply.round, reply.note["nonce"]) == ("nothing", 5, "n")
    assert "no device answers" in reply.note["reason"]
    assert "--node-config" in carried(Parcel("step"), "train.step").note["reason"]


def test_a_busy_device_is_not_waited_for_beyond_the_timeout(tmp_path):
    given_up = threading.Event()

    def slow(request: Parcel) -> Parcel:
        given_up.wait(60)
        return Parcel("nothing")

    with SocketServer(tmp_path / "s", slow):
        reply = carried(Parcel("step", 5), "train.step", device=str(tmp_path / "s"), timeout=0.2)
        given_up.set()
    assert "within 0.2 seconds" in reply.note["reason"]


def test_a_malformed_request_is_refused():
    assert unpack(ask_device(np.zeros(5, np.uint8), "nowhere"), 1 << 20).kind == "refused"


def test_it_loads_neither_torch_nor_the_rest_of_the_package():
    code = (
        "import sys, time; import flwr.clientapp, flwr.app; before = time.perf_counter();"
        "import fedctta.fleet.transport.client_app;"
        "print(1000 * (time.perf_counter() - before));"
        "print(*(m for m in sys.modules if m.partition('.')[0] in ('torch', 'scipy', 'matplotlib', 'pyarrow', 'PIL')));"
        "print(*sorted(m for m in sys.modules if m.startswith('fedctta')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    print(f"fedctta's own share of the ClientApp's start: {float(out[0]):.1f} ms")
    assert out[1] == ""
    assert set(out[2].split()) == {"fedctta", "fedctta.errors", "fedctta.fleet", "fedctta.fleet.flower", *_NEEDED}


_NEEDED = {
    "fedctta.fleet.transport",
    "fedctta.fleet.transport.client_app",
    "fedctta.fleet.transport.framing",
    "fedctta.fleet.transport.sparse_rows",
    "fedctta.fleet.transport.wire",
}


def test_without_flower_the_remedy_is_told():
    hidden = "import sys; sys.modules['flwr'] = None; sys.modules['flwr.app'] = None"
    code = f"{hidden}; import fedctta.fleet.transport.client_app"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'fedctta[fleet]'" in done.stderr.splitlines()[-1]
