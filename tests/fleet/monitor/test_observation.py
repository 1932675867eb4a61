"""What a server's files tell, whole or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from pretended_state import NAMES, write_state

from fedctta.errors import UserError
from fedctta.files import write_tensors
from fedctta.fleet.monitor.metrics import write_metrics
from fedctta.fleet.monitor.observation import LATEST, MOST_ROWS, Observer, find_state, read_refusals, read_weights
from fedctta.fleet.server import audit


def test_everything_is_seen_at_once_and_can_be_written_as_json(tmp_path):
    seen = Observer(write_state(tmp_path)).observe()
    assert json.loads(json.dumps(seen)) == seen
    assert seen["round"] == 5
    assert seen["age"] < 5
    assert seen["collaboration"] == {"round": 4, "names": NAMES, "weights": [[0.25] * 4] * 4}
    assert [line["device"] for line in seen["refusals"]] == ["[/x]"]
    assert (seen["audit"]["lines"], seen["audit"]["breaks"]) == (4, [])
    assert seen["audit"]["latest"][0]["device"] == NAMES[3]


@pytest.mark.parametrize(("doing", "said"), [("collecting", "not running"), ("finished", "finished")])
def test_nobody_is_online_where_no_server_works(tmp_path, doing, said):
    seen = Observer(write_state(tmp_path, at_work=False, doing=doing)).observe()
    assert seen["doing"] == said
    assert len(seen["nodes"]) == len(NAMES)
    assert not any(node["online"] for node in seen["nodes"])
    assert 'fedctta_devices{state="online"} 0' in write_metrics(seen)
    assert not (tmp_path / "lock").exists()
    assert Observer(write_state(tmp_path, doing=doing)).observe()["doing"] == doing


def test_where_the_state_is(tmp_path):
    with pytest.raises(UserError, match=r"no status\.json"):
        find_state(tmp_path)
    write_state(tmp_path / "server")
    assert find_state(tmp_path) == find_state(tmp_path / "server") == tmp_path / "server"


@pytest.mark.parametrize("content", ["", "[", "[]", '{"round": "x", "written": null}', '{"round": -1}'])
def test_a_damaged_status_is_no_exception(tmp_path, content):
    (tmp_path / "status.json").write_text(content)
    seen = Observer(tmp_path).observe()
    assert (seen["collaboration"], seen["refusals"], seen["audit"]["lines"]) == (None, [], 0)


def test_the_audit_log_is_checked_again_after_a_change(tmp_path, monkeypatch):
    observer = Observer(write_state(tmp_path))
    checks = []
    check = audit.chain_breaks
    monkeypatch.setattr(
        "fedctta.fleet.monitor.observation.chain_breaks", lambda folder: checks.append(folder) or check(folder)
    )
    observer.observe()
    observer.observe()
    assert len(checks) == 1
    path = tmp_path / audit.LOG
    path.write_bytes(path.read_bytes().replace(b"device-0", b"device-9"))
    assert observer.observe()["audit"]["breaks"][0]["line"] == 2


def test_torn_and_foreign_refusals_are_left_out_and_the_last_comes_first(tmp_path):
    assert read_refusals(tmp_path) == []
    lines = [json.dumps({"round": k, "node": "1", "device": None, "reason": "x"}) for k in range(50)]
    lines[45:45] = ["[" * 100_000, "null", "{}", "\x00", '{"round": 1']
    (tmp_path / "refusals.jsonl").write_text("\n".join(lines))
    assert [line["round"] for line in read_refusals(tmp_path)][:3] == [49, 48, 47]
    assert len(read_refusals(tmp_path, 2)) == 2


def test_a_large_w_is_named_but_not_sent(tmp_path):
    names = [f"device-{k}" for k in range(MOST_ROWS + 1)]
    weights = np.eye(len(names), dtype=np.float32)
    path = tmp_path / "collaboration" / "000000.safetensors"
    write_tensors(path, {"weights": weights}, "names", names, framework="numpy")
    assert read_weights(tmp_path, 0) == {"round": 0, "names": names, "weights": None}
    assert read_weights(tmp_path, 1) is None


def test_only_the_latest_events_are_shown(tmp_path):
    for k in range(LATEST + 3):
        audit.record(tmp_path, "refused", round=k)
    seen = Observer(tmp_path).observe()["audit"]
    assert [line["round"] for line in seen["latest"]] == list(range(LATEST + 2, 2, -1))
    assert seen["lines"] == LATEST + 3


def test_neither_torch_nor_flower_is_loaded():
    code = "import sys, fedctta.fleet.monitor.web_server, fedctta.fleet.monitor.observation as o; o.Observer"
    code += "; print([name for name in ('torch', 'flwr') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
