from __future__ import annotations

import json
import stat
import time
from dataclasses import asdict

import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.tent import Tent
from fedctta.errors import NoRoom, UserError
from fedctta.files import write_tensors
from fedctta.fleet.device import device_state as keep_module
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.health.signals import Alarm
from fedctta.online.adaptation import Adaptation


class Keyed(Tent):
    """Has a key, as a method that draws random numbers."""

    def init(self, network):
        client = super().init(network)
        return client._replace(private={**client.private, "key": torch.tensor(7)})


@pytest.fixture
def make(tiny_network):
    """Return adaptations whose scales are all `value`."""

    def made(value=0.0, adapter=None, **words):
        found = Adaptation(tiny_network, adapter or Keyed(), **words)
        found.client = found.client._replace(own={n: torch.full_like(t, value) for n, t in found.client.own.items()})
        return found

    return made


def closed(keep):
    keep._lock.close()
    return keep


def test_what_is_saved_is_loaded(tmp_path, make):
    keep = DeviceState(tmp_path, "me")
    assert keep.load(make()) == StreamPosition()
    first = make(2.5)
    first.client.private["key"] += 5
    keep.save(first, StreamPosition(4, 40, "run", 3))
    closed(keep)
    loaded = make()
    assert DeviceState(tmp_path, "me").load(loaded) == StreamPosition(4, 40, "run", 3)
    assert all(t.eq(2.5).all() for t in loaded.client.own.values())
    assert int(loaded.client.private["key"]) == int(first.client.private["key"])
    assert not list(tmp_path.glob("*.part"))


def test_what_the_guard_knows_is_loaded_too(tmp_path, make):
    first, again = make(2.5), make()
    healthy = first._healthy
    with torch.no_grad():
        first.answer(torch.rand(32, 3, 8, 8))
    first.watchman.alarms, first.skipped, first.watchman.resting = (Alarm(3, 0.1, 0.5),), 2, True
    first._healthy = healthy
    closed(keep := DeviceState(tmp_path, "me")).save(first, StreamPosition(1))
    assert keep.load(again) == StreamPosition(1)
    assert again.health == first.health
    assert again.health.answers == "source"
    for name, tensor in healthy.own.items():
        assert torch.equal(again._healthy.own[name], tensor)
        assert not torch.equal(again.client.own[name], tensor)
    told = json.loads((tmp_path / "health.json").read_text())
    assert told["alarms"] == [{"batch": 3, "accuracy": 0.1, "source_accuracy": 0.5}]
    off = make(guard="off")
    keep.load(off)
    assert not off.watchman.resting


def test_a_state_without_what_watches_it_is_taken(tmp_path, make):
    """As earlier versions wrote it."""
    first, again = make(2.5), make()
    tensors = {n: t for n, t in first.state().items() if n.startswith(("own.", "private."))}
    write_tensors(tmp_path / "device.safetensors", tensors, "device", {"made_by": "me", **asdict(StreamPosition(9))})
    assert closed(DeviceState(tmp_path, "me")).load(again) == StreamPosition(9)
    assert all(t.eq(2.5).all() for t in again.client.own.values())
    assert again.health.batches == 0


def test_a_folder_serves_one_device_at_a_time(tmp_path):
    keep = DeviceState(tmp_path, "me")
    with pytest.raises(UserError, match="another device runs"):
        DeviceState(tmp_path, "me")
    closed(keep)
    DeviceState(tmp_path, "me")


def refused(folder, predicted=None):
    """A device that is refused after it has opened its state."""
    with DeviceState(folder, "me"):
        if predicted is not None:
            (folder / "predictions.jsonl").write_text(predicted)
        raise UserError("refused")


def test_a_refused_device_removes_the_folder_that_it_made_and_no_other(tmp_path):
    (tmp_path / "old").mkdir()
    for name, predicted, left in (("a", None, False), ("c", "{}\n", True), ("old", "", True)):
        with pytest.raises(UserError, match="refused"):
            refused(tmp_path / name, predicted)
        assert (tmp_path / name).exists() == left
    assert (tmp_path / "c" / "predictions.jsonl").read_text() == "{}\n"
    with DeviceState(tmp_path / "c", "me"):
        pass
    with DeviceState(tmp_path / "c", "me"):  # it was unlocked
        pass


def test_the_state_of_another_model_and_a_damaged_one_are_told(tmp_path, make):
    closed(DeviceState(tmp_path, "me")).save(make(), StreamPosition(1))
    with pytest.raises(UserError, match="another model"):
        closed(DeviceState(tmp_path, "you")).load(make())
    with pytest.raises(UserError, match="another model"):
        closed(DeviceState(tmp_path, "me")).load(make(adapter=BatchStatistics()))
    path = tmp_path / "device.safetensors"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UserError, match="damaged"):
        closed(DeviceState(tmp_path, "me")).load(make())


def test_saving_takes_its_share_of_time_and_no_more(tmp_path, monkeypatch, make):
    now = [0.0]

    def clock():
        now[0] += 0.001  # each look at the clock: so a save takes 1 ms
        return now[0]

    monkeypatch.setattr(keep_module, "perf_counter", clock)
    keep, saves, adaptation = DeviceState(tmp_path, "me"), [], make()
    monkeypatch.setattr("safetensors.torch.save_file", lambda *a, **k: saves.append(now[0]) or a[1].touch())
    for batch in range(1, 1001):
        now[0] += 0.01
        keep.offer(adaptation, StreamPosition(batch))
    assert keep.seconds <= 1.5 * keep_module.SHARE * now[0]
    assert len(saves) > 50


def test_saving_every_so_many_batches(tmp_path, make):
    keep, adaptation = DeviceState(tmp_path, "me", every=3), make()
    saved = []
    for batch in range(1, 8):
        keep.offer(adaptation, StreamPosition(batch))
        saved.append(keep._at.batches)
    assert saved == [0, 0, 3, 3, 3, 6, 6]


def test_without_room_predicting_goes_on_and_the_state_is_saved_later(tmp_path, make, monkeypatch, caplog):
    monkeypatch.setattr(keep_module, "FULL", 0.01)
    kept, tries = keep_module.write_tensors, []

    def full(*words, **named):
        tries.append(1)
        if len(tries) < 4:
            raise NoRoom("cannot write device.safetensors: No space left on device")
        kept(*words, **named)

    monkeypatch.setattr(keep_module, "write_tensors", full)
    keep, adaptation = DeviceState(tmp_path, "me", every=1), make(2.5)
    for batch in range(1, 9):
        keep.offer(adaptation, StreamPosition(batch, 10 * batch))
        time.sleep(0.02)
    assert len(tries) > 4
    assert caplog.text.count("No space left on device; predicting goes on") == 1
    closed(keep)
    assert DeviceState(tmp_path, "me").load(make()).batches == 8
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_at_its_end_a_device_without_room_fails(tmp_path, make, monkeypatch):
    def full(*words, **named):
        raise NoRoom("cannot write device.safetensors: No space left on device")

    monkeypatch.setattr(keep_module, "write_tensors", full)
    with pytest.raises(NoRoom):
        DeviceState(tmp_path, "me").save(make(), StreamPosition(1, 10))


def test_a_state_serves_one_source_if_that_counts_its_images(tmp_path, make):
    first = "stream:dataset=shapes-c,client=0"
    closed(DeviceState(tmp_path, "me", data=first)).save(make(), StreamPosition(1, 10, size=(8, 8, 3)))
    for other in ("stream:dataset=shapes-c,client=1", "python:eyes:look", "folder:images"):
        with pytest.raises(UserError, match=rf"the state in {tmp_path} is of --data {first}: choose another --state"):
            closed(DeviceState(tmp_path, "me", data=other)).load(make())
    assert closed(DeviceState(tmp_path, "me", data=first)).load(make()).size == (8, 8, 3)


def test_files_are_known_by_their_path_whatever_names_them(tmp_path, make):
    closed(DeviceState(tmp_path, "me", data="folder:a")).save(make(), StreamPosition(1, 10, size=(8, 8, 3)))
    for other in ("folder:b", "watch:a", "stdin"):
        place = closed(DeviceState(tmp_path, "me", data=other)).load(make())
        assert place == StreamPosition(1, 10)  # another folder may have images of another size
    with pytest.raises(UserError, match="is of --data folder:a"):
        closed(DeviceState(tmp_path, "me", data="stream:dataset=shapes-c")).load(make())


def test_a_state_that_does_not_tell_its_source_is_taken(tmp_path, make):
    """As earlier versions wrote it."""
    header = {"made_by": "me", "batches": 9, "images": 90, "run": "", "round": -1}
    write_tensors(tmp_path / "device.safetensors", make().state(), "device", header)
    keep = DeviceState(tmp_path, "me", data="stream:dataset=shapes-c")
    assert keep.load(make()) == StreamPosition(9, 90)
