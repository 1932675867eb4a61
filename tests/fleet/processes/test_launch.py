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


def test_devices_read_data_of_ones_own_as_the_server_does(tmp_path):
    run = {"dataset": "folders", "folder": "mine", "size": 24, "source_images": "more", "model": "resnet8-w16"}
    words = _device_words(Tryout(tmp_path, 2, run=run), "device-0", 0, tmp_path / "0.sock")
    experiment, _ = parse_stream(words[words.index("--data") + 1].removeprefix("stream:"), 10)
    for key in ("dataset", "folder", "size", "source_images"):
        assert getattr(experiment, key) == run[key]
    assert words[words.index("--model") + 1] == "resnet8-w16"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"run": {"niid.clusters": 9}}, "clusters"),
        ({"run": {"nonsense": 1}}, "unknown key"),
        ({"run": {"weights": "missing.pt"}}, "no weights at missing.pt"),
        ({"run": {"aggregator": "ugsa", "robust": "median"}}, "robust=median has no effect on ugsa"),
        ({"run": {"aggregator": "oracle"}}, "nothing for a server to do"),
        ({"run": {"adapter": "recall", "aggregator": "recall"}, "lockstep": True}, "lock-step has no effect"),
        ({"fleet": {"quorum": 2.0}}, "quorum=2.0"),
        ({"devices": 0}, "--devices 0 must be at least 1"),
        ({"rounds": 0}, "--rounds 0 must be at least 1"),
        ({"pace": 0.2, "lockstep": True}, "--pace has no effect with --lockstep"),
        ({"lockstep": True, "run": {"tent.lr": 0.1}}, r"tent\.lr has no effect"),
        ({"pace": -1.0}, "--pace -1.0 must be at least 0"),
    ],
)
def test_wrong_words_write_and_start_nothing(tmp_path, words, reason):
    with pytest.raises(UserError, match=reason):
        up(Tryout(tmp_path / "out", **{"devices": 2, **words}), lambda *_: None)
    assert not list(tmp_path.iterdir())


def test_the_folder_of_another_fleet_stays_as_it_is(tmp_path):
    (tmp_path / "fleet.toml").write_text("[fleet]\n")
    with pytest.raises(UserError, match="another fleet"):
        up(Tryout(tmp_path), lambda *_: None)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["[fleet]\n"]


def test_only_free_running_devices_have_a_pace(tmp_path):
    tryouts = Tryout(tmp_path, pace=0.5), Tryout(tmp_path), Tryout(tmp_path, lockstep=True)
    free, usual, locked = (_device_words(tryout, "d", 0, tmp_path) for tryout in tryouts)
    assert free[free.index("--pace") + 1] == "0.5"
    assert usual[usual.index("--pace") + 1] == "1.0"
    assert "--pace" not in locked
