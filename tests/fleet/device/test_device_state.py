from __future__ import annotations

import pytest
import torch

from fedctta.core.clients import Client
from fedctta.errors import UserError
from fedctta.fleet.device import device_state as keep_module
from fedctta.fleet.device.device_state import DeviceState, StreamPosition


def client(value=0.0):
    return Client({"w": torch.full((2, 3), value)}, {"key": torch.tensor(7)})


def closed(keep):
    keep._lock.close()
    return keep


def test_what_is_saved_is_loaded(tmp_path):
    keep = DeviceState(tmp_path, "me")
    assert keep.load(client())[1] == StreamPosition()
    keep.save(client(2.5), StreamPosition(4, 40, "run", 3))
    closed(keep)
    loaded, place = DeviceState(tmp_path, "me").load(client())
    assert place == StreamPosition(4, 40, "run", 3)
    assert loaded.own["w"].eq(2.5).all()
    assert int(loaded.private["key"]) == 7
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_serves_one_device_at_a_time(tmp_path):
    keep = DeviceState(tmp_path, "me")
    with pytest.raises(UserError, match="another device runs"):
        DeviceState(tmp_path, "me")
    closed(keep)
    DeviceState(tmp_path, "me")


def test_the_state_of_another_model_and_a_damaged_one_are_told(tmp_path):
    closed(DeviceState(tmp_path, "me")).save(client(), StreamPosition(1))
    with pytest.raises(UserError, match="another model"):
        closed(DeviceState(tmp_path, "you")).load(client())
    with pytest.raises(UserError, match="another model"):
        closed(DeviceState(tmp_path, "me")).load(Client({"w": torch.zeros(2)}))
    path = tmp_path / "device.safetensors"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UserError, match="damaged"):
        closed(DeviceState(tmp_path, "me")).load(client())


def test_saving_takes_its_share_of_time_and_no_more(tmp_path, monkeypatch):
    now = [0.0]

    def clock():
        now[0] += 0.001  # each look at the clock: so a save takes 1 ms
        return now[0]

    monkeypatch.setattr(keep_module, "perf_counter", clock)
    keep, saves = DeviceState(tmp_path, "me"), []
    monkeypatch.setattr("safetensors.torch.save_file", lambda *a, **k: saves.append(now[0]) or a[1].touch())
    for batch in range(1, 1001):
        now[0] += 0.01
        keep.offer(client(), StreamPosition(batch))
    assert keep.seconds <= 1.5 * keep_module.SHARE * now[0]
    assert len(saves) > 50


def test_saving_every_so_many_batches(tmp_path):
    keep = DeviceState(tmp_path, "me", every=3)
    saved = []
    for batch in range(1, 8):
        keep.offer(client(), StreamPosition(batch))
        saved.append(keep._at.batches)
    assert saved == [0, 0, 3, 3, 3, 6, 6]
