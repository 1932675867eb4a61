"""Clusters that split when their members disagree."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.cfl import CFL, halves
from fedctta.aggregators.common.mixing import mix, restrict
from fedctta.errors import UserError

SOURCE = torch.tensor([1.0, 1.0])
EAST, NORTH_EAST, WEST = [2.0, 0.0], [2.0, 0.5], [-2.0, 0.0]
STILL = [0.0, 0.0]


def sent_before(memory, clients):
    return memory.get("sent.a", SOURCE.expand(clients, 2))


def play(aggregator, rounds, memory=None, active=None):
    """Let clients move by the given updates from what they were sent; give W, what is sent now and the memory."""
    clients = len(rounds[0])
    server = SimpleNamespace(network=SimpleNamespace(state={"a": SOURCE}, device="cpu"), clients=clients)
    memory = aggregator.init(server) if memory is None else memory
    active = torch.ones(clients, dtype=torch.bool) if active is None else torch.tensor(active)
    for updates in rounds:
        own = {"a": sent_before(memory, clients) + torch.tensor(updates)}
        weights, memory = aggregator.collaborate(server, Uploads(own, {}, active), memory)
        torch.testing.assert_close(weights.sum(1), torch.ones(clients), atol=1e-6, rtol=0)
        sent, memory = aggregator.step(server, None, mix(restrict(weights, active), own), active, memory)
    return weights, sent["a"], memory


def test_opposite_updates_split_the_cluster():
    """The mean update, (0, 0.125), is below 0.4 and the longest above 1.6."""
    weights, sent, memory = play(CFL(), [[EAST, WEST, NORTH_EAST, WEST]])
    half = [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]]
    assert weights.tolist() == half * 2
    torch.testing.assert_close(sent, torch.tensor([[3.0, 1.25], [-1.0, 1.0]] * 2))
    torch.testing.assert_close(memory["sent.a"], sent)


@pytest.mark.parametrize(
    ("updates", "why"),
    [
        ([EAST, EAST, EAST, WEST], "the mean, (1, 0), still moves"),
        ([[0.1, 0.0], [-0.1, 0.0], [0.1, 0.0], [-0.1, 0.0]], "nobody moves"),
        ([STILL] * 4, "nobody moves at all"),
    ],
)
def test_a_cluster_that_agrees_stays_whole(updates, why):
    weights, _, memory = play(CFL(), [updates])
    assert weights.tolist() == [[0.25] * 4] * 4, why
    assert memory["cluster"].unique().numel() == 1


def test_clusters_stay_and_split_again():
    north, south = [0.0, 2.0], [0.0, -2.0]
    apart, agreeing = [EAST, EAST, WEST, WEST], [[0.1, 0.0]] * 4
    weights, _, memory = play(CFL(), [apart, agreeing])
    assert weights.tolist() == [[0.5, 0.5, 0, 0]] * 2 + [[0, 0, 0.5, 0.5]] * 2
    weights, _, memory = play(CFL(), [[north, south, STILL, STILL]], memory)
    assert weights.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]]
    assert memory["cluster"].unique().numel() == 3


def play_code(updates, statistics=(), active=None):
    """One round of the published code: weights move by `updates`, statistics of two BatchNorm layers by `statistics`.

    Return W of weights and of statistics, and what is sent of both.
    """
    names = [f"{layer}.{what}" for layer in ("b", "c") for what in ("running_mean", "running_var")]
    source = {"a": SOURCE} | dict.fromkeys(names[: 4 if statistics else 0], torch.ones(2))
    known = {name: source[name] for name in source if name != "a"}
    clients = len(updates)
    network = SimpleNamespace(state=source, statistics=known, device="cpu")
    server = SimpleNamespace(network=network, clients=clients)
    active = torch.ones(clients, dtype=torch.bool) if active is None else torch.tensor(active)
    own = {"a": SOURCE + torch.tensor(updates)} | {name: 1 + torch.tensor(statistics) for name in known}
    aggregator = CFL(variant="code")
    weights, memory = aggregator.collaborate(server, Uploads(own, {}, active), aggregator.init(server))
    sent, memory = aggregator.step(server, None, mix(restrict(weights, active), own), active, memory)
    return weights, sent, memory


def test_the_code_looks_at_the_smallest_cosine():
    apart = [[0.02, 0.0], [0.02, 0.0], [0.02, 0.02]]  # cosine 0.71, and the mean moves
    weights, _, _ = play_code(apart)
    assert weights["a"].tolist() == [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]]


def test_the_code_forgets():
    _, _, memory = play_code([[0.02, 0.0], [0.02, 0.0], [0.02, 0.02]])
    network = SimpleNamespace(state={"a": SOURCE}, statistics={}, device="cpu")
    own = {"a": memory["sent.a"] + torch.tensor([0.1, 0.0])}
    uploads = Uploads(own, {}, torch.ones(3, dtype=torch.bool))
    weights, _ = CFL(variant="code").collaborate(SimpleNamespace(network=network, clients=3), uploads, memory)
    torch.testing.assert_close(weights["a"], torch.full((3, 3), 1 / 3))


@pytest.mark.parametrize(
    "updates",
    [
        [[0.02, 0.0], [0.0, 0.02]],  # only two clients
        [[0.002, 0.0], [0.0, 0.002], [0.002, 0.0]],  # too short
        [[1.0, 0.0], [1.0, 0.2], [1.0, 0.1]],  # cosines above 0.97
    ],
)
def test_the_code_does_not_split_these(updates):
    weights, _, _ = play_code(updates)
    torch.testing.assert_close(weights["a"], torch.full_like(weights["a"], 1 / len(updates)))


STAYED = [[0.0, 0.0]] * 4


@pytest.mark.parametrize(
    ("length", "cosine", "split"),
    [(0.2, 2 / (2 + 0.04), False), (0.3, 2 / (2 + 0.09), True)],  # 0.980 and 0.957
)
def test_counters_of_batches_make_updates_alike(length, cosine, split):
    """Two layers count one batch each, for everybody, so that u . v = 2 where updates are at right angles."""
    east, north = [length, 0.0], [0.0, length]
    weights, _, _ = play_code([east, east, north, north], STAYED)
    assert (cosine < 0.97) == split
    apart = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5))
    torch.testing.assert_close(weights["a"], apart if split else torch.full((4, 4), 0.25))
    assert play_code([east, east, north, north])[0]["a"].tolist() == apart.tolist()  # no layer, no counter


def test_statistics_count_in_the_cosines_and_stay_at_home():
    moved = [[0.3, 0.0], [0.3, 0.0], [0.0, 0.3], [0.0, 0.3]]  # four tensors of them: 2 / (2 + 4 x 0.09) = 0.847
    weights, sent, memory = play_code(STAYED, moved)
    torch.testing.assert_close(weights["a"], torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5)))
    for name, tensor in sent.items():
        if name != "a":
            assert weights[name].tolist() == torch.eye(4).tolist()
            torch.testing.assert_close(tensor, 1 + torch.tensor(moved))
            torch.testing.assert_close(memory[f"sent.{name}"], tensor)


def test_the_code_has_nothing_to_do_where_only_statistics_are_adapted(tiny_network):
    CFL().check(tiny_network, tiny_network.statistics)
    CFL(variant="code").check(tiny_network, tiny_network.state)
    with pytest.raises(UserError, match=r"cfl.variant=code leaves BatchNorm statistics .* use adapter=grad"):
        CFL(variant="code").check(tiny_network, tiny_network.statistics)


def test_the_absent_keep_their_cluster_and_decide_nothing():
    far = [100.0, 100.0]
    weights, _, memory = play(CFL(), [[EAST, EAST, far, WEST, WEST]], active=[True, True, False, True, True])
    assert memory["cluster"][2] in memory["cluster"][[0, 1, 3, 4]]
    assert restrict(weights, torch.tensor([True, True, False, True, True]))[0].tolist() == [0.5, 0.5, 0, 0, 0]
    assert memory["sent.a"][2].tolist() == SOURCE.tolist()
    before = memory["cluster"][2].item()
    _, _, memory = play(CFL(), [[STILL] * 5], memory, active=[True, True, False, True, True])
    assert memory["cluster"][2].item() == before


def test_who_keeps_the_number_does_not_depend_on_the_order():
    """The larger half keeps it; of equal halves the one that moved less."""
    aggregator, away = CFL(eps1=1.0), [1.9, 0.0]
    for group, absent_with in (([EAST, EAST, WEST], EAST), ([EAST, EAST, WEST, [-1.9, 0.0]], WEST)):
        for updates in (group, group[::-1]):
            active = [True] * len(group) + [False]
            _, _, memory = play(aggregator, [[*updates, away]], active=active)
            cluster = memory["cluster"].tolist()
            assert cluster[-1] == cluster[updates.index(absent_with)]


def test_alone():
    assert play(CFL(), [[EAST], [WEST]])[0].tolist() == [[1]]
    assert play_code([EAST])[0]["a"].tolist() == [[1]]


def test_the_cut_is_that_of_complete_linkage():
    """At 0, 30, 65 and 105 degrees, single linkage would leave the last one alone."""
    angle = torch.deg2rad(torch.tensor([0.0, 30.0, 65.0, 105.0]))
    vectors = torch.stack([angle.cos(), angle.sin()], 1)
    assert sorted(map(sorted, halves(vectors @ vectors.T))) == [[0, 1], [2, 3]]


def test_impossible_thresholds_are_refused():
    for parameters in ({"eps1": -1}, {"eps1": 2.0}):
        with pytest.raises(UserError, match=r"must (be at most|not be negative)"):
            CFL(**parameters)
