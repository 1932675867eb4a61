"""Alarms: raised where adapting does harm, and only there; what follows from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import fedctta
from fedctta.adapters.norm import NormEMA
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.health.guard import FIRST, LEAST, does_harm, is_due, is_healthy
from fedctta.health.signals import Alarm, first_signals

SIZE = 32


def signals(mean=0.0, deviation=0.3, pairs=100.0, batches=50.0):
    values = {"gain": mean * pairs, "square": (deviation**2 + mean**2) * pairs, "pairs": pairs, "batches": batches}
    return first_signals(3)._replace(**{name: torch.tensor(value) for name, value in values.items()})


def test_a_verdict_needs_evidence():
    assert does_harm(signals(-0.2))
    assert not does_harm(signals(-0.1))  # not certain
    assert does_harm(signals(-0.1, pairs=1000.0))
    assert not does_harm(signals(-0.015, pairs=1e6))  # within the margin
    assert not does_harm(signals(-0.9, pairs=LEAST - 1.0))
    assert is_healthy(signals(0.0))
    assert not is_healthy(signals(-0.1))
    assert not is_healthy(first_signals(3))


def test_the_first_batches_some_of_the_others_and_suspicious_ones_are_checked():
    assert all(is_due(signals(batches=float(k)), 10) for k in range(FIRST))
    assert [k for k in range(FIRST, 40) if is_due(signals(batches=float(k)), 10)] == [10, 20, 30]
    assert is_due(signals(-0.1, batches=11.0), 10)
    assert not any(is_due(signals(-0.9, batches=float(k)), 0) for k in range(40))


def test_a_rest_is_longer_after_every_alarm():
    def tries(alarms):
        found = tuple(Alarm(batch, 0.1, 0.5) for batch in alarms)
        return [k for k in range(60) if is_due(signals(-0.9, batches=float(k)), 10, found, resting=True)]

    assert tries([3]) == [20, 30, 40, 50]
    assert tries([0, 3]) == [30, 40, 50]
    assert tries([0, 1, 3]) == [50]


@dataclass(frozen=True)
class Spoiler(NormEMA):
    """Moves the statistics a little, and spoils them while a batch is dark."""

    name: ClassVar[str] = "spoiler"
    momentum: float = 1e-3

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        after = super().adapt(network, client, x)
        return after if x.mean() > 0 else after._replace(own={n: t * 0 + 1e6 for n, t in after.own.items()})


@pytest.fixture
def sure_module(tiny_module):
    """A model that is sure of its predictions, so that there is something to lose."""
    with torch.no_grad():
        tiny_module[5].weight *= 60
    return tiny_module


def stream(dark, batches=40):
    generator = torch.Generator().manual_seed(0)
    for t in range(batches):
        x = torch.rand(SIZE, 3, 8, 8, generator=generator)
        yield x - 10 if t in dark else x


def source(module, x):
    with torch.no_grad():
        return Network(module)({}, x).logits


def test_without_harm_there_is_no_alarm_and_the_guard_changes_nothing(sure_module):
    guarded, free = fedctta.adapt(sure_module, Spoiler()), fedctta.adapt(sure_module, Spoiler(), guard="off", check=0)
    for x in stream(dark=()):
        assert torch.equal(guarded(x), free(x))
    assert guarded.health.alarms == ()
    assert guarded.health.answers == "adapted"
    assert free.health.accuracy is None


def test_reset_goes_back_to_the_last_healthy_state_and_comes_back(sure_module):
    model = fedctta.adapt(sure_module, Spoiler(), check=4)
    dark = range(12, 20)
    for t, x in enumerate(stream(dark, 60)):
        answer = model(x)
        if t == dark[0]:
            healthy = model.adaptation._healthy
        if model.health.alarms and t == model.health.alarms[0].batch:
            assert torch.equal(answer, source(sure_module, x))
            assert model.client is healthy
            assert model.health.answers == "source"
    (alarm,) = model.health.alarms
    assert alarm.batch in range(12, 20)
    assert alarm.accuracy < alarm.source_accuracy
    assert "source model on" in str(alarm)
    assert model.health.answers == "adapted"
    assert float(model.client.own["1.running_mean"].abs().max()) < 1e3


def test_freeze_leaves_the_answers_to_the_source_until_told_otherwise(sure_module):
    model = fedctta.adapt(sure_module, Spoiler(), check=4, guard="freeze")
    for x in stream(dark=range(12, 20)):
        answer = model(x)
    assert model.frozen
    assert len(model.health.alarms) == 1
    assert torch.equal(answer, source(sure_module, x))
    model.unfreeze()
    assert not torch.equal(model(x), source(sure_module, x))
    assert model.health.answers == "adapted"


def test_while_the_source_answers_the_estimate_is_its_own_and_stays_fresh(sure_module):
    model = fedctta.adapt(sure_module, Spoiler(), check=4, guard="freeze")
    found = []
    for x in stream(dark=range(12, 40)):
        model(x)
        found.append((model.health.answers, model.health.accuracy, model.health.source_accuracy))
    resting = [accuracy for answers, accuracy, source_accuracy in found if answers == "source"]
    assert all(accuracy == source_accuracy for answers, accuracy, source_accuracy in found if answers == "source")
    assert len(set(resting)) > 4


def test_off_only_tells(sure_module):
    model = fedctta.adapt(sure_module, Spoiler(), check=4, guard="off")
    for x in stream(dark=range(12, 40)):
        answer = model(x)
    assert model.health.alarms
    assert not torch.equal(answer, source(sure_module, x))


def test_alarms_and_rest_outlive_a_restart(sure_module, tmp_path):
    model, again = (fedctta.adapt(sure_module, Spoiler(), check=4) for _ in range(2))
    for x in stream(dark=range(12, 40)):
        model(x)
    model.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    assert again.health == model.health
    assert again.health.answers == "source"
    assert torch.equal(again(x), source(sure_module, x))


def test_a_check_takes_batches_of_any_size(sure_module):
    for size in (2, 31, 33, 63, 64, 70, 200):
        model = fedctta.adapt(sure_module, "bn")
        model(torch.rand(size, 3, 8, 8))
        assert model.health.accuracy is not None


def test_other_data_are_checked_without_a_mirror():
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    model = fedctta.adapt(module, "tent")
    model(torch.randn(8, 5))
    assert 0 < model.health.accuracy < 1


@pytest.mark.parametrize(
    ("words", "line"),
    [({"guard": "on"}, "guard"), ({"check": -1}, "check=-1"), ({"check": 0, "guard": "freeze"}, "give check=10")],
)
def test_a_guard_that_cannot_be_is_one_line(words, line, tiny_module):
    with pytest.raises(UserError, match=line):
        fedctta.adapt(tiny_module, "bn", **words)


def frozen_by_an_alarm(module):
    model = fedctta.adapt(module, Spoiler(), check=4, guard="freeze")
    for x in stream(dark=range(12, 20)):
        model(x)
    assert model.frozen
    return model


def test_reset_ends_a_freeze(sure_module):
    alarmed, told = frozen_by_an_alarm(sure_module), fedctta.adapt(sure_module, Spoiler(), check=4, guard="freeze")
    told.freeze()
    for model in (alarmed, told):
        model.reset()
        for x in stream(dark=(), batches=2):
            model(x)
        assert not model.frozen
        assert model.health.batches == 2
        assert model.health.answers == "adapted"


@pytest.mark.parametrize("guard", ["reset", "off", "freeze"])
def test_a_state_that_an_alarm_froze_is_frozen_only_under_the_same_guard(guard, sure_module, tmp_path):
    frozen_by_an_alarm(sure_module).save(tmp_path / "state.safetensors")
    model = fedctta.adapt(sure_module, Spoiler(), check=4, guard=guard)
    model.load(tmp_path / "state.safetensors")
    before = model.health.batches
    for x in stream(dark=(), batches=60):
        model(x)
    assert model.frozen == (guard == "freeze")
    assert (model.health.answers, model.health.batches > before) == (
        ("source", False) if guard == "freeze" else ("adapted", True)
    )


@pytest.mark.parametrize("resting", [False, True])
def test_a_model_that_was_told_to_freeze_stays_frozen_when_loaded(resting, sure_module, tmp_path):
    model, again = (fedctta.adapt(sure_module, Spoiler(), check=4) for _ in range(2))
    model.freeze()
    model.adaptation.watchman.resting = resting
    model.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    assert again.frozen
