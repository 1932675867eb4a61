"""What is kept of earlier domains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.adapters import adapters
from fedctta.aggregators import Server, aggregators
from fedctta.core.clients import by_vmap
from fedctta.engine.retention import Retention, last_visits, reference
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.errors import UserError
from fedctta.models.inputs import to_input
from fedctta.results.metrics import forgetting
from fedctta.streams import Stream, build
from fedctta.streams.arrivals import Arrivals


def federation(network, adapter="bn", aggregator="ugsa", clients=3):
    server = Server(network, by_vmap, 0, (3, 8, 8), clients, lambda count: torch.zeros(count, 3, 8, 8))
    return Federation(adapters.create(adapter), aggregators.create(aggregator), server)


@pytest.fixture
def stream(domains):
    return build(Arrivals(stay=2), domains, clients=3, slots=2, batch=4, seed=0)


def test_a_domain_is_left_for_good_by_the_last_of_its_visitors():
    domain = np.array([[0, 1], [0, 1], [0, 2], [-1, 0], [-1, 2], [-1, -1]])
    assert last_visits(domain).tolist() == [1, 3, 4]


def test_on_a_busy_stream_every_domain_is_measured_right_after_its_last_visit(domains):
    """One client moves in every round, so that 640 stays end; domain 0 is left for good after round 37."""
    t = np.arange(640)
    domain = np.stack([np.where(t <= 37, 0, -1), 1 + t % 2], 1).astype(np.int32)
    stream = Stream(domains, domain, np.zeros((2, 640, 1), np.int64), np.zeros_like(domain))
    retention = Retention(stream, images=2, seed=0)
    assert retention.rounds.tolist() == [37, 638, 639]
    assert retention.accuracy.shape == (3, 3)


def test_earlier_domains_are_measured_with_the_servers_model(tiny_network, stream):
    """The last row by hand: the model the server keeps at the end, on the same images of each domain."""
    played, retention = federation(tiny_network), Retention(stream, images=12, seed=0)
    states = []

    class Listening:
        def measure(self, federation, state, t):
            states.append(state)
            retention.measure(federation, state, t)

        def tensors(self):
            return retention.tensors()

    simulate(played, stream, retention=Listening())
    assert retention.rounds.tolist() == [1, 3, 5]
    assert retention.accuracy[0].isnan().tolist() == [False, True, True]
    assert retention.accuracy[1].isnan().tolist() == [False, False, True]
    kept = played.aggregator.keeps(states[-1].memory)
    for k, name in enumerate(stream.data.names):
        x = to_input(stream.data.images[name][retention.samples[name]], tiny_network.device)
        guesses = torch.cat([tiny_network(kept, part).logits.argmax(1) for part in x.split(4)])
        right = (guesses.numpy() == stream.data.labels[retention.samples[name]]).mean()
        assert retention.accuracy[2, k].item() == pytest.approx(right)


def test_without_a_server_model_a_newcomer_is_the_mean_of_those_there(tiny_network):
    played = federation(tiny_network, "bn", "local")
    state = played.start()
    own = {name: torch.arange(3.0).view(3, *[1] * (t.dim() - 1)).expand_as(t) for name, t in state.clients.own.items()}
    mean = reference(played, state._replace(clients=state.clients._replace(own=own)), torch.tensor([1, 2]))
    assert all((tensor == 1.5).all() for tensor in mean.own.values())


def test_looking_changes_nothing(tiny_network, stream):
    plain = simulate(federation(tiny_network, "tent"), stream)
    watched = simulate(federation(tiny_network, "tent"), stream, retention=Retention(stream, 8, 0))
    assert torch.equal(plain.correct, watched.correct)
    assert torch.equal(plain.entropy, watched.entropy)


def test_forgetting_is_what_was_lost_since_a_domain_was_left():
    domain = np.array([[0], [1], [0], [2], [3]])  # domain 0 is left for good after round 2
    rounds = np.arange(5)
    accuracy = np.array([[0.9, 0, 0, 0], [0.8, 0.7, 0, 0], [0.6, 0.5, 0, 0], [0.5, 0.5, 0.4, 0], [0.2, 0.6, 0.4, 0.3]])
    assert forgetting(accuracy, rounds, domain) == pytest.approx(((0.6 - 0.2) + (0.7 - 0.6) + (0.4 - 0.4)) / 3)
    assert np.isnan(forgetting(np.zeros((0, 0)), np.zeros(0, int), domain))
    assert np.isnan(forgetting(accuracy[:1], rounds[:1], domain[:1]))


def test_an_interrupted_run_keeps_what_it_measured(tiny_network, stream, tmp_path):
    whole, first = Retention(stream, 8, 0), Retention(stream, 8, 0)
    simulate(federation(tiny_network), stream, retention=whole)
    path = tmp_path / "place"

    def stop(t, tally):
        if t == 3:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        simulate(federation(tiny_network), stream, checkpoint=path, save_every=0.0, on_round=stop, retention=first)
    second = Retention(stream, 8, 0)
    simulate(federation(tiny_network), stream, checkpoint=path, retention=second)
    torch.testing.assert_close(second.accuracy, whole.accuracy, equal_nan=True)
    with pytest.raises(UserError, match="does not fit this run"):
        second.restore({}, path)
