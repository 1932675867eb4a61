"""FedCTTA's equations on worked examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.aggregators import Server, Uploads
from fedctta.aggregators import fedctta as fedctta_module
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.fedctta import FedCTTA, collaboration, noise
from fedctta.core.clients import by_vmap
from fedctta.core.network import Network
from fedctta.core.randomness import keys
from fedctta.errors import UserError

MU = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])


def softmax(row):
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def test_euclid_by_hand():
    root = math.sqrt(3**2 + 3**2)
    expected = torch.tensor([softmax([0, -5, -1]), softmax([-5, 0, -root]), softmax([-1, -root, 0])])
    torch.testing.assert_close(collaboration(MU, "euclid", 1.0), expected)


def test_temperature_divides_the_distance():
    torch.testing.assert_close(collaboration(MU, "euclid", 2.0)[0], torch.tensor(softmax([0, -2.5, -0.5])))


def test_kl_and_cross_entropy_by_hand():
    p = [softmax(row) for row in MU.tolist()]
    ce = [[-sum(a * math.log(b) for a, b in zip(p[i], p[j], strict=True)) for j in range(3)] for i in range(3)]
    kl = [[ce[i][j] - ce[i][i] for j in range(3)] for i in range(3)]
    expected = torch.tensor([softmax([-value for value in row]) for row in kl])
    torch.testing.assert_close(collaboration(MU, "kl", 1.0), expected)
    # A row's own entropy is the same for every peer, so the softmax cannot tell the two apart.
    torch.testing.assert_close(collaboration(MU, "ce", 1.0), expected)
    squashed = torch.tensor([softmax([math.exp(-value) for value in row]) for row in kl])
    torch.testing.assert_close(collaboration(MU, "kl", 1.0, squash=True), squashed)


def test_cosine_by_hand():
    expected = softmax([0.8, 1.0])
    torch.testing.assert_close(collaboration(MU[1:], "cosine", 1.0)[1], torch.tensor(expected))


@pytest.mark.parametrize("metric", ["kl", "ce"])
def test_a_client_that_has_collapsed_into_one_class_has_weights_too(metric):
    """p = (0, 1) and q = (1/2, 1/2): KL(p, q) = ln 2, and KL(q, p) is as large as the least logarithm."""
    aggregator = FedCTTA(probe="batch", compare="probabilities", metric=metric, ema=0.0)
    indicator = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    sent = Uploads({}, {"indicator": indicator}, torch.ones(2, dtype=torch.bool))
    weights, _ = aggregator.collaborate(linear_server(), sent, {})
    torch.testing.assert_close(weights, torch.tensor([[2 / 3, 1 / 3], [0.0, 1.0]]))


def linear_server(samples_shape=(3, 4, 4), clients=2, seed=0):
    """A model whose mean logits are the mean of the input times a weight: an answer one can compute."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 2, bias=False))
    network = Network(module)
    images = torch.full((8, *samples_shape), 0.5)
    return Server(network, by_vmap, seed, samples_shape, clients, lambda count: images[:count])


def uploads(*weights):
    own = torch.stack([torch.full((2, 48), float(w)) for w in weights])
    return Uploads({"1.weight": own}, {}, torch.ones(len(weights), dtype=torch.bool))


def test_the_probe_is_the_mean_output_of_every_model():
    server, aggregator = linear_server(), FedCTTA(probe="images", samples=8, ema=0.0)
    weights, _ = aggregator.collaborate(server, uploads(0.0, 0.125), aggregator.init(server))
    distance = math.sqrt(2) * 48 * 0.5 * 0.125  # two equal logits, each sum_k 0.5 * 0.125
    torch.testing.assert_close(weights[0], torch.tensor(softmax([0, -distance])))


def test_noise_is_shared_by_clients_and_fixed_by_the_seed():
    server = linear_server()
    assert torch.equal(noise(server, 4), noise(server, 4))
    assert not torch.equal(noise(server, 4), noise(linear_server(seed=1), 4))
    assert 0 <= noise(server, 64).min() < 0.01 < 0.99 < noise(server, 64).max() <= 1


def test_redrawn_noise_differs_from_round_to_round():
    server = linear_server()
    for redraw, same in (("never", True), ("round", False), ("client", False)):
        aggregator = FedCTTA(redraw=redraw, ema=0.0, samples=2)
        first, memory = aggregator.collaborate(server, uploads(0.0, 0.1), aggregator.init(server))
        second, _ = aggregator.collaborate(server, uploads(0.0, 0.1), memory)
        assert torch.equal(first, second) == same


def test_noise_of_ones_own_tells_equal_models_apart():
    server, aggregator = linear_server(), FedCTTA(redraw="client", ema=0.0, samples=2)
    weights, _ = aggregator.collaborate(server, uploads(1.0, 1.0), aggregator.init(server))
    assert weights[0, 1] < 0.4


def test_the_indicator_is_smoothed_over_rounds_by_hand():
    server, aggregator = linear_server(), FedCTTA(probe="images", samples=8, ema=0.75)
    _, memory = aggregator.collaborate(server, uploads(0.0, 0.5), aggregator.init(server))
    torch.testing.assert_close(memory["indicator"], torch.tensor([[0.0, 0.0], [12.0, 12.0]]))
    _, memory = aggregator.collaborate(server, uploads(0.5, 0.5), memory)
    torch.testing.assert_close(memory["indicator"], torch.tensor([[3.0, 3.0], [12.0, 12.0]]))


def test_an_absent_client_keeps_its_indicator_and_starts_fresh_when_it_first_comes():
    server, aggregator = linear_server(), FedCTTA(probe="images", samples=8, ema=0.75)
    alone = torch.tensor([True, False])
    _, memory = aggregator.collaborate(server, uploads(0.5, 0.0)._replace(active=alone), aggregator.init(server))
    _, memory = aggregator.collaborate(server, uploads(0.5, 0.5), memory)
    torch.testing.assert_close(memory["indicator"][1], torch.tensor([12.0, 12.0]))
    _, memory = aggregator.collaborate(server, uploads(0.0, 0.0)._replace(active=alone), memory)
    torch.testing.assert_close(memory["indicator"], torch.tensor([[9.0, 9.0], [12.0, 12.0]]))


def test_uniform_is_a_fixed_point_when_received_models_are_probed_on_one_probe():
    server, aggregator = linear_server(), FedCTTA(statistics="received", ema=0.0)
    memory = aggregator.init(server)
    for _ in range(3):
        sent = uploads(0.0, 1.0)
        weights, memory = aggregator.collaborate(server, sent, memory)
        torch.testing.assert_close(weights, torch.full((2, 2), 0.5))
        mixed, memory = aggregator.step(server, sent, mix(weights, sent.own), sent.active, memory)
        assert all(torch.equal(memory[f"received.{name}"], tensor) for name, tensor in mixed.items())


def norm_server(clients=3):
    """A model of one BatchNorm layer, which answers z with (z - mean) / sqrt(var), and its statistics by client."""
    module = nn.Sequential(nn.BatchNorm2d(2, affine=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    server = Server(Network(module), by_vmap, 0, (2, 4, 4), clients, lambda count: torch.zeros(count, 2, 4, 4))
    mean = torch.arange(clients)[:, None] * torch.ones(clients, 2)
    own = {"0.running_mean": mean, "0.running_var": torch.ones(clients, 2)}
    return server, Uploads(own, {}, torch.ones(clients, dtype=torch.bool))


def play(aggregator, server, sent, memory):
    """One round of everybody: W, and the memory after all have received."""
    weights, memory = aggregator.collaborate(server, sent, memory)
    return weights, aggregator.step(server, sent, mix(weights, sent.own), sent.active, memory)[1]


def test_the_published_form_probes_what_was_received_with_noise_of_every_clients_own():
    server, sent = norm_server()
    published = FedCTTA(variant="code", ema=0.0)
    memory = published.init(server)
    first, memory = play(published, server, sent, memory)
    # In the first round nothing was received: noise normalised by itself answers 0, whoever asks.
    torch.testing.assert_close(first, torch.full((3, 3), 1 / 3), atol=1e-5, rtol=0)
    second, memory = play(published, server, sent, memory)
    # All received the same model: W is nearly uniform, but not quite, for noise differs between clients.
    assert 1e-3 < (second - 1 / 3).abs().max() < 0.1
    third, _ = play(published, server, sent, memory)
    assert not torch.equal(second, third)


def test_the_published_form_leaves_the_fixed_point_that_a_shared_probe_has():
    server, sent = norm_server()
    shared, own = FedCTTA(variant="code", redraw="never", ema=0.0), FedCTTA(variant="code", ema=0.0, temperature=0.01)
    for aggregator, stays in ((shared, True), (own, False)):
        memory = aggregator.init(server)
        for _ in range(3):
            weights, memory = play(aggregator, server, sent, memory)
        assert torch.allclose(weights, torch.full((3, 3), 1 / 3), atol=1e-4) == stays


def test_the_published_form_probes_weights_as_they_were_adapted():
    published = FedCTTA(variant="code")
    assert not published.probes_received(uploads(0.0, 1.0).own)
    assert published.probes_received(norm_server()[1].own)
    assert not FedCTTA(variant="code", statistics="adapted").probes_received(norm_server()[1].own)
    assert not FedCTTA().probes_received(norm_server()[1].own)
    assert (published.count, published.redrawn) == (64, "client")
    assert (FedCTTA(variant="code", samples=8).count, FedCTTA().count) == (8, 16)


def test_the_published_form_is_equivariant_if_noise_moves_along(monkeypatch):
    server, sent = norm_server()
    order, published = torch.tensor([2, 0, 1]), FedCTTA(variant="code", samples=4)
    moved = sent._replace(own={name: tensor[order] for name, tensor in sent.own.items()})
    results = []
    for those, keys_of in ((sent, keys), (moved, lambda *given: keys(*given)[order])):
        monkeypatch.setattr(fedctta_module, "keys", keys_of)
        memory = published.init(server)
        for _ in range(2):
            weights, memory = play(published, server, those, memory)
        results.append(weights)
    torch.testing.assert_close(results[1], results[0][order][:, order])
    torch.testing.assert_close(results[0].sum(1), torch.ones(3))


def test_parameters_of_a_probe_that_is_not_used_are_refused():
    for parameters in ({"probe": "images", "redraw": "round"}, {"probe": "batch", "samples": 8}):
        with pytest.raises(UserError, match="has no effect"):
            FedCTTA(**parameters)
    with pytest.raises(UserError, match="has no effect"):
        FedCTTA(probe="batch", statistics="received")


def test_many_clients_are_asked_a_few_at_a_time(monkeypatch):
    server, together = linear_server(clients=7), []

    def lift(function):
        def lifted(clients):
            together.append(len(clients.own["1.weight"]))
            return by_vmap(function)(clients)

        return lifted

    watched = Server(server.network, lift, 0, (3, 4, 4), 7, server.images)
    for redraw in ("never", "client"):
        aggregator = FedCTTA(samples=4, redraw=redraw)
        whole, _ = aggregator.collaborate(server, uploads(*range(7)), aggregator.init(server))
        monkeypatch.setattr(fedctta_module, "CPU_IMAGES", 14)
        monkeypatch.setattr(fedctta_module, "CUDA_IMAGES", 14)
        parts, _ = aggregator.collaborate(watched, uploads(*range(7)), aggregator.init(watched))
        torch.testing.assert_close(parts, whole)
        monkeypatch.undo()
    assert together == [3, 3, 1] * 2


def test_without_adapted_tensors_all_models_are_alike():
    server = linear_server()
    weights, _ = FedCTTA().collaborate(server, uploads(0.0, 1.0)._replace(own={}), FedCTTA().init(server))
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_impossible_parameters_are_refused():
    for parameters in ({"temperature": 0}, {"samples": 0}, {"ema": 1.0}, {"ema": -0.1}):
        with pytest.raises(UserError, match="must be"):
            FedCTTA(**parameters)
    network = Network(nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten()))
    server = Server(network, by_vmap, 0, (3, 4, 4), 2, lambda count: torch.zeros(count, 3, 4, 4))
    with pytest.raises(UserError, match="compare=logits"):
        FedCTTA(compare="features").init(server)
