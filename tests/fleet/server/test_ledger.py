"""The server's place is saved whole, and is given back as it was."""

from __future__ import annotations

import json

import pytest
import torch

from fedctta.errors import NoRoom, UserError
from fedctta.fleet.server import ledger as module
from fedctta.fleet.server.collaboration import Standing
from fedctta.fleet.server.ledger import Ledger, ServerProgress, read_collaboration

START = Standing({"b": torch.zeros(3, 2), "a": torch.zeros(3)}, {"round": torch.tensor(0)})


@pytest.fixture
def ledger(tmp_path):
    found = Ledger(tmp_path, "me")
    yield found
    found.close()


def test_round_trip(ledger):
    place, standing = ledger.load(START)
    assert (place.round, standing) == (0, START)
    place = ServerProgress(place.run, 4, ["x", "y"], {1: 3}, {"y": 2}, {"y": 1}, {"y": 9}, 10, 20)
    after = Standing({"b": torch.rand(3, 2), "a": torch.rand(3)}, {"round": torch.tensor(4), "new": torch.rand(2)})
    ledger.save(place, after)
    found, standing = ledger.load(START)
    assert found == place
    assert list(standing.rows) == ["b", "a"]
    for part, like in zip(standing, after, strict=True):
        assert part.keys() == like.keys()
        assert all(torch.equal(part[name], like[name]) for name in like)


def test_a_crash_while_saving_leaves_the_old_place(ledger, monkeypatch):
    place, _ = ledger.load(START)
    ledger.save(place, START)

    def torn(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", torn)
    with pytest.raises(UserError, match=r"cannot write .*: disk full"):
        ledger.save(ServerProgress(round=1), START)
    monkeypatch.undo()
    assert ledger.load(START)[0] == place
    assert [p.name for p in ledger.folder.iterdir() if p.name.endswith(".part")] == []


def test_other_settings_damage_and_a_second_server_are_refused(tmp_path):
    first = Ledger(tmp_path, "me")
    first.save(ServerProgress(), START)
    with pytest.raises(UserError, match="another server works"):
        Ledger(tmp_path, "me")
    first.close()
    other = Ledger(tmp_path, "you")
    with pytest.raises(UserError, match="other settings"):
        other.load(START)
    other.checkpoint.write_bytes(b"junk")
    with pytest.raises(UserError, match="damaged"):
        other.load(START)
    other.close()


@pytest.mark.parametrize("part", ["rows", "memory"])
def test_tensors_of_another_shape_are_refused(ledger, part):
    """As of a version whose looks had fewer numbers."""
    ledger.save(ServerProgress(), START)
    wider = START._replace(**{part: {n: t.new_zeros((*t.shape, 2)) for n, t in getattr(START, part).items()}})
    with pytest.raises(UserError, match=r"checkpoint.safetensors is of another version: choose another state folder"):
        ledger.load(wider)


def test_collaboration_is_kept_for_a_while(ledger, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 2)
    for t in range(4):
        ledger.write_collaboration(t, torch.eye(2) * t, ["x", "y"])
    assert sorted(p.name for p in (ledger.folder / "collaboration").iterdir()) == [
        "000002.safetensors",
        "000003.safetensors",
    ]
    weights, names = read_collaboration(ledger.folder, 3)
    assert torch.equal(weights, torch.eye(2) * 3)
    assert names == ["x", "y"]


def test_refusals_are_lines(ledger):
    ledger.refuse(3, 2**63, "d", "too\nlong")
    ledger.refuse(4, 5, None, "why", quarantined=True)
    lines = [json.loads(line) for line in ledger.refusals.read_text().splitlines()]
    assert [(line["round"], line["node"], line["device"]) for line in lines] == [(3, str(2**63), "d"), (4, "5", None)]
    assert lines[1]["quarantined"]


def test_refusals_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 2000)
    ledger = Ledger(tmp_path, "me")
    for round_ in range(100):
        ledger.refuse(round_, 7, "cam", "not finite")
    ledger.close()
    sizes = [path.stat().st_size for path in tmp_path.glob("refusals.jsonl*")]
    assert len(sizes) <= 2
    assert max(sizes) < 2200


def test_a_refusal_without_room_is_no_reason_to_end(tmp_path, monkeypatch, caplog):
    def full(file, content, path):
        raise NoRoom(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(module, "append", full)
    ledger = Ledger(tmp_path, "me")
    ledger.refuse(0, 7, "cam", "not finite")
    ledger.close()
    assert "No space left on device" in caplog.text
