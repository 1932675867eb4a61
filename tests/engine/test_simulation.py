"""A whole stream: stopped and resumed, recorded as asked, and timed without what only looks on."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators.fedavg import FedAvg
from fedctta.core.network import Network
from fedctta.engine import saving
from fedctta.engine.checkpoint import load_checkpoint
from fedctta.engine.rounds import Federation, flatten
from fedctta.engine.simulation import simulate
from fedctta.errors import UserError
from fedctta.models import build as build_model
from fedctta.models.inputs import to_input
from fedctta.streams import Stream, build
from fedctta.streams.clusters import NIID


@pytest.fixture
def stream(domains):
    """Nine rounds of four clients."""
    return build(NIID(clusters=2), domains, clients=4, slots=3, batch=4, seed=0)


class Stop(Exception):
    """Ends a run from outside."""


def stopped_in(round_, one, stream, place):
    """Play until the given round, saving every round, and die there."""

    def die(t, tally):
        if t == round_:
            raise Stop

    with pytest.raises(Stop):
        simulate(one, stream, checkpoint=place, save_every=0, on_round=die)


SMALL_FORMS = {
    "cotta": {"views": 2},
    "memo": {"views": 2},
    "rotta": {"places": 3, "side": 8},
    "atp": {"rates": "0.01"},
    "fedthe": {"views": 2, "plus": 1},
    "fedicon": {"steps": 1},
    "bpa": {"steps": 1},
}


@pytest.fixture
def check_resumed(stream, witness, tmp_path):
    """Play a run whole, and broken and resumed: every tensor must be the same, and lie the same in memory."""
    place = tmp_path / "run.checkpoint"

    def check(one):
        last, again = witness(), witness()
        whole = simulate(one, stream, retention=last)

        def interrupt(t, tally):
            if t == 4:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            simulate(one, stream, checkpoint=place, on_round=interrupt)
        rounds = []
        resumed = simulate(one, stream, checkpoint=place, on_round=lambda t, tally: rounds.append(t), retention=again)
        assert rounds == [5, 6, 7, 8]
        state = flatten(again.state)
        for name, tensor in flatten(last.state).items():
            assert torch.equal(state[name], tensor), name
            assert state[name].stride() == tensor.stride(), name
        assert list(state) == list(flatten(last.state))
        for name, tensor in whole.tensors().items():
            assert name == "tally.seconds" or torch.equal(resumed.tensors()[name], tensor), name

    return check


@pytest.mark.parametrize("adapter", adapters.classes())
def test_a_resumed_run_gives_the_numbers_of_an_unbroken_one(federation, adapter, tiny_network, check_resumed):
    method = adapters.create(adapter, SMALL_FORMS.get(adapter, {}))
    check_resumed(federation(tiny_network, method, "fedctta", lift="loop"))


@pytest.mark.parametrize("aggregator", ["local", "fedavg", "ugsa", "ldawa", "fedavgm"])
@pytest.mark.parametrize("adapter", ["grad", "shot", "cotta"])
def test_a_resumed_run_of_whole_models_gives_the_same_numbers_too(federation, adapter, aggregator, check_resumed):
    """Kernels of one pixel change their strides as rounds go by."""
    network = Network(build_model("resnet8-w16", 3, seed=1))
    method = adapters.create(adapter, SMALL_FORMS.get(adapter, {}))
    check_resumed(federation(network, method, aggregator))


def test_a_killed_run_continues_from_its_last_save(federation, tiny_network, stream, tmp_path):
    whole = simulate(federation(tiny_network), stream)
    place = tmp_path / "run.checkpoint"
    stopped_in(6, federation(tiny_network), stream, place)
    assert torch.equal(simulate(federation(tiny_network), stream, checkpoint=place).correct, whole.correct)


def test_a_checkpoint_of_another_model_is_refused(federation, tiny_network, stream, tmp_path):
    place = tmp_path / "run.checkpoint"
    stopped_in(1, federation(tiny_network), stream, place)
    with pytest.raises(UserError, match="does not fit"):
        simulate(federation(tiny_network, "grad"), stream, checkpoint=place)


def test_an_interrupt_in_the_midst_of_a_round_lets_it_end_and_saves_it(
    federation, tiny_network, stream, tmp_path, monkeypatch
):
    play, ended, place = Federation.play, [], tmp_path / "run.checkpoint"

    def interrupted(self, state, t, *more):
        if t == 2:
            os.kill(os.getpid(), signal.SIGINT)
        result = play(self, state, t, *more)
        ended.append(t)
        return result

    monkeypatch.setattr(Federation, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulate(federation(tiny_network), stream, checkpoint=place, fingerprint="mine")
    assert ended == [0, 1, 2]
    assert load_checkpoint(place, "mine", "cpu")[0] == 3


def test_an_interrupt_without_a_checkpoint_stops_too_and_writes_nothing(
    federation, tiny_network, stream, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rounds = []

    def interrupt(t, tally):
        rounds.append(t)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        simulate(federation(tiny_network), stream, on_round=interrupt)
    assert rounds == [0]
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_other_settings_is_refused(federation, tiny_network, stream, tmp_path):
    place = tmp_path / "run.checkpoint"
    stopped_in(1, federation(tiny_network), stream, place)
    with pytest.raises(UserError, match="belongs to other settings"):
        simulate(federation(tiny_network), stream, checkpoint=place, fingerprint="another")


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def each_round_takes(self, seconds, monkeypatch):
        play = Federation.play

        def slowly(*arguments):
            self.now += seconds
            return play(*arguments)

        monkeypatch.setattr(Federation, "play", slowly)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(saving, "perf_counter", clock)
    return clock


@pytest.fixture
def onlooker(witness, clock):
    """A witness that takes 100 seconds over every look."""

    class Onlooker(witness):
        def measure(self, federation, state, t):
            clock.now += 100

    return Onlooker()


def test_seconds_are_those_of_the_rounds_and_not_of_a_look_at_them(
    federation, tiny_network, stream, clock, onlooker, monkeypatch
):
    clock.each_round_takes(2, monkeypatch)
    assert simulate(federation(tiny_network), stream, retention=onlooker).seconds == 2 * 9
    assert clock.now == 102 * 9


def test_a_resumed_run_counts_the_seconds_before_the_break_and_not_the_break(
    federation, tiny_network, stream, tmp_path, clock, monkeypatch
):
    clock.each_round_takes(2, monkeypatch)
    place = tmp_path / "run.checkpoint"
    stopped_in(4, federation(tiny_network), stream, place)  # rounds 0 to 3 are saved
    clock.now += 1000
    assert simulate(federation(tiny_network), stream, checkpoint=place).seconds == 2 * 9


def test_the_place_is_saved_as_often_as_asked(federation, tiny_network, stream, tmp_path, clock, monkeypatch):
    clock.each_round_takes(2, monkeypatch)
    saved = []
    monkeypatch.setattr(saving, "save_checkpoint", lambda path, mark, rounds, tensors: saved.append(rounds))
    simulate(federation(tiny_network), stream, checkpoint=tmp_path / "place", save_every=5)
    assert saved == [3, 6, 9]
    simulate(federation(tiny_network), stream, checkpoint=tmp_path / "place", save_every=60)
    simulate(federation(tiny_network), stream, save_every=0)
    assert saved == [3, 6, 9]


def test_every_predicted_class_is_kept_only_if_asked(federation, tiny_network, stream):
    assert simulate(federation(tiny_network), stream).classes is None
    kept = simulate(federation(tiny_network, "none"), stream, predictions=True).classes
    for t in range(len(stream)):
        x = to_input(stream.slot(t).images, tiny_network.device)
        assert torch.equal(kept[t], torch.stack([tiny_network({}, batch).logits.argmax(1) for batch in x]))


def test_every_round_is_told_once_and_in_order_also_one_in_which_nobody_is_there(federation, tiny_network, stream):
    domain = stream.domain.copy()
    domain[4] = -1
    told = []
    quiet = Stream(stream.data, domain, stream.samples, stream.visit)
    tally = simulate(federation(tiny_network), quiet, on_round=lambda t, tally: told.append((t, tally)))
    assert [t for t, _ in told] == list(range(9))
    assert all(shown is tally for _, shown in told)
    assert np.flatnonzero(tally.seen().sum(1) == 0).tolist() == [4]
    assert tally.kept_rounds.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]


def test_outputs_that_are_not_finite_stop_the_run(federation, tiny_network, stream):
    tiny_network.state["5.bias"] = torch.full((3,), torch.nan)
    with pytest.raises(UserError, match="NaN or infinite"):
        simulate(federation(tiny_network), stream)


def test_graphs_that_cannot_be_are_told(federation, tiny_network, stream):
    insisting = replace(federation(tiny_network), graphs="always")
    with pytest.raises(UserError, match="lift=graph needs images with one label each that fit on a CUDA GPU"):
        simulate(insisting, stream)


class Prophet(FedAvg):
    """Says which rounds it was asked to foresee."""

    def foresee(self, server, read, rounds):
        return {"shapes": torch.tensor([[t, *read(t).shape] for t in rounds])}


def test_the_server_is_shown_what_all_will_see_where_that_is_of_use(federation, tiny_network, stream, monkeypatch):
    asked = []
    monkeypatch.setattr(
        Prophet, "collaborate", lambda self, server, uploads, memory: asked.append(memory) or NotImplemented
    )

    def memory(federation, stream):
        with pytest.raises(UserError, match="must return two things"):
            simulate(federation, stream)
        return asked[-1]

    one = federation(tiny_network, aggregator=Prophet())
    assert memory(one, stream) == {}, "on a CPU it is of no use"
    monkeypatch.setattr("fedctta.engine.simulation._foreseeable", lambda federation, stream: True)
    assert memory(replace(one, interval=2), stream)["shapes"].tolist() == [
        [t, 4, 4, 3, 8, 8] for t in range(1, len(stream), 2)
    ]
