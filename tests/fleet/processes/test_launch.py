"""What a try-out tells its parts, before anything is started."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from fedctta.errors import UserError
from fedctta.fleet.processes.launch import Tryout, _device_words, up
from fedctta.fleet.server.plan import load_plan
from fedctta.fleet.simulation.simulated import open_stream, parse_stream


def stream_of(words):
    experiment, client = parse_stream(words[words.index("--data") + 1].removeprefix("stream:"), 10)
    return open_stream(experiment), client


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_server_and_devices_see_one_experiment(tmp_path, devices):
    run = {"slots": 1, "bn.momentum": 0.5, "aggregator": "fedavg", "seed": 3}
    tryout = Tryout(tmp_path, devices, rounds=5, run=run, lockstep=True)
    (tmp_path / "fleet.toml").write_text(tryout.plan())
    plan = load_plan(tmp_path / "fleet.toml")
    assert (plan.rounds, plan.max_devices, plan.lockstep) == (5, devices, True)
    words = _device_words(tryout, "device-0", devices - 1, tmp_path / "0.sock")
    stream, client = stream_of(words)
    assert (stream.clients, client) == (devices, devices - 1)
    assert (stream.domain == open_stream(plan.experiment).domain).all()
    assert {"--lockstep", "bn.momentum=0.5"} <= set(words)


def test_wrong_words_start_nothing(tmp_path):
    with pytest.raises(UserError, match="clusters"):
        up(Tryout(tmp_path / "a", 2, run={"niid.clusters": 9}), lambda *_: None)
    with pytest.raises(UserError, match="robust=median has no effect on ugsa"):
        up(Tryout(tmp_path / "c", 2, run={"aggregator": "ugsa", "robust": "median"}), lambda *_: None)
    assert not [*tmp_path.glob("*/logs"), *tmp_path.glob("*/keys")]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "fleet.toml").write_text("[fleet]\n")
    with pytest.raises(UserError, match="another fleet"):
        up(Tryout(tmp_path / "b"), lambda *_: None)


def test_only_free_running_devices_have_a_pace(tmp_path):
    free, locked = (
        _device_words(Tryout(tmp_path, lockstep=flag, pace=0.5), "d", 0, tmp_path) for flag in (False, True)
    )
    assert free[free.index("--pace") + 1] == "0.5"
    assert "--pace" not in locked
