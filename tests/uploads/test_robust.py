"""Robust mixing: refused, capped, clipped, trimmed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedctta.adapters import adapters
from fedctta.aggregators import Server, Uploads, aggregators
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.common.neighbours import Neighbours, nearest
from fedctta.core.clients import by_vmap
from fedctta.core.network import Network
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError
from fedctta.uploads.attacks import Liars
from fedctta.uploads.robust import NEARLY_ALL, Robust, capped, clipped, plausible, trimmed, without
from fedctta.uploads.server_half import serve
from fedctta.uploads.stages import Transit

SOURCE = {"bn.running_mean": torch.zeros(3), "bn.running_var": torch.ones(3)}


def uploads(clients=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    own = {
        "bn.running_mean": torch.randn(clients, 3, generator=generator),
        "bn.running_var": torch.rand(clients, 3, generator=generator),
    }
    return Uploads(own, {"signal": torch.ones(clients, 2)}, torch.ones(clients, dtype=torch.bool))


def random_w(clients, seed=0):
    return torch.rand(clients, clients, generator=torch.Generator().manual_seed(seed)).softmax(1)


def weighted_median(values, weights):
    """The smallest value that half of the weight does not exceed."""
    order = np.argsort(values, kind="stable")
    return values[order][np.searchsorted(np.cumsum(weights[order]), 0.5)]


def test_none_changes_nothing():
    given, w = uploads(), random_w(5)
    transit = Transit(0, given, given.active, given.active)
    assert Robust().handle(None, transit) is transit
    assert Robust().limit(w) is w
    mixed = Robust().mix(w, given.own, given.own)
    assert all(torch.equal(mixed[name], tensor) for name, tensor in mix(w, given.own).items())


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("own", "bn.running_mean", torch.nan),
        ("own", "bn.running_mean", torch.inf),
        ("own", "bn.running_mean", -100.0),
        ("own", "bn.running_var", -1e-3),
        ("signals", "signal", torch.nan),
        ("signals", "signal", -2e15),
    ],
)
def test_an_upload_that_cannot_be_true_is_refused(part, name, value):
    given = uploads()
    getattr(given, part)[name][2, 1] = value
    assert plausible(given, SOURCE).tolist() == [True, True, False, True, True]


def test_signals_have_no_source_and_whole_numbers_name_things():
    given = uploads()
    given.signals["signal"][2] = 1e15
    given.signals["name"] = torch.full((5,), 2**62)
    assert plausible(given, SOURCE).all()


@pytest.mark.parametrize("normalise", ["none", "running"])
def test_the_largest_signal_leaves_a_memory_of_numbers(normalise):
    network = Network(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 2)))
    server = Server(network, by_vmap, 0, (3, 4, 4), 5, lambda count: torch.rand(count, 3, 4, 4))
    aggregator = aggregators.create("ugsa", {"normalise": normalise})
    here, memory = torch.ones(5, dtype=torch.bool), aggregator.init(server)
    own = {name: network.state[name].expand(5, -1) for name in network.statistics}
    for largest in (1e15, -1e15, 1e25):
        signals = {"uncertainty": torch.tensor([largest, 0.5, 0.5, 0.5, 0.5])}
        transit = Transit(0, Uploads(own, signals, here), here, here)
        memory = serve(server, aggregator, Robust("check"), transit, own, memory).memory
    assert all(tensor.isfinite().all() for tensor in memory.values())


def test_a_negative_mean_is_fine():
    given = uploads()
    given.own["bn.running_mean"][2] = -2
    assert plausible(given, SOURCE).all()


def test_what_is_refused_leaves_no_trace():
    given = uploads()
    given.own["bn.running_mean"][2] = torch.nan
    refused = torch.tensor([False, False, True, False, False])
    left = without(given, refused, SOURCE)
    assert left.active.tolist() == [True, True, False, True, True]
    assert left.trust.tolist() == [1, 1, 0, 1, 1]
    assert all(tensor.isfinite().all() for tensor in left.own.values())
    assert torch.equal(left.own["bn.running_var"][2], SOURCE["bn.running_var"])


def test_who_is_refused_does_not_receive():
    given = uploads()
    given.own["bn.running_var"][0] = -1
    for way in ("check", "cap", "clip", "median", "trimmed"):
        _, _, receive = Robust(way).admit(given, given.active, SOURCE)
        assert receive.tolist() == [False, True, True, True, True]


def test_no_peer_is_above_the_cap_and_oneself_gets_the_rest():
    w = torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.5, 0.3], [0.0, 0.0, 1.0]])
    expected = torch.tensor([[0.75, 0.25, 0.0], [0.2, 0.55, 0.25], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(capped(w, 0.25), expected)
    by_tensor = Robust("cap", cap=0.25).limit({"a": w})
    torch.testing.assert_close(by_tensor["a"], expected)


def test_a_cap_on_neighbours_is_that_on_the_whole_matrix():
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) * 3
    near = nearest(lambda rows: scores[rows], torch.ones(6, dtype=torch.bool), 3)
    torch.testing.assert_close(capped(near, 0.3).matrix().to_dense(), capped(near.matrix().to_dense(), 0.3))


def test_only_what_is_far_is_clipped():
    stack = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [300.0, 400.0]])
    everybody = torch.ones(6, dtype=torch.bool)
    found = clipped(stack, everybody, factor=3)
    assert torch.equal(found[:5], stack[:5])
    torch.testing.assert_close(found[5], torch.tensor([1.8, 2.4]))


def test_the_absent_have_no_say_in_what_is_far():
    stack = torch.tensor([[0.0], [1.0], [2.0], [500.0], [500.0], [500.0], [500.0]])
    here = torch.tensor([True, True, True, False, False, False, False])
    assert torch.equal(clipped(stack, here, factor=2), stack)


def test_whole_numbers_are_not_clipped():
    count = torch.tensor([3, 3, 3, 900])
    assert clipped(count, torch.ones(4, dtype=torch.bool), factor=2) is count


def test_clipping_leaves_ones_own_share_alone():
    sent = uploads()
    sent.own["bn.running_mean"][1] = 9.0
    robust = Robust("clip", clip=0.5)
    admitted, _, _ = robust.admit(sent, sent.active, SOURCE)
    assert admitted.own["bn.running_mean"][1].norm() < 9
    eye = torch.eye(5)
    for w in (eye, dict.fromkeys(sent.own, eye), Neighbours(torch.arange(5)[:, None], torch.ones(5, 1))):
        mixed = robust.mix(w, admitted.own, sent.own)
        torch.testing.assert_close(mixed, sent.own)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_the_median_is_the_weighted_one(clients, seed):
    generator = np.random.default_rng(seed)
    values, w = generator.normal(size=(clients, 4)), generator.dirichlet(np.ones(clients), clients)
    found = trimmed(torch.from_numpy(w), {"x": torch.from_numpy(values)}, NEARLY_ALL)["x"].numpy()
    for i, row in enumerate(w):
        for p in range(4):
            if np.abs(np.cumsum(row[np.argsort(values[:, p])]) - 0.5).min() > 2e-3:  # otherwise there are two
                np.testing.assert_allclose(found[i, p], weighted_median(values[:, p], row), atol=1e-9)


def test_of_two_middle_values_the_median_is_the_mean():
    own = {"x": torch.tensor([[1.0], [2.0], [4.0], [900.0]])}
    found = trimmed(torch.full((4, 4), 0.25), own, NEARLY_ALL)["x"]
    torch.testing.assert_close(found, torch.full((4, 1), 3.0), rtol=1e-4, atol=0)


@pytest.mark.parametrize("share", [0.4995, 0.49999999, 0.5 - 2**-53])
def test_trimming_all_but_nothing_is_the_median(share):
    own, w = uploads().own, random_w(5)
    found, median = trimmed(w, own, share), trimmed(w, own, NEARLY_ALL)
    assert all(tensor.isfinite().all() for tensor in found.values())
    torch.testing.assert_close(found, median)


def test_nothing_trimmed_is_plain_mixing():
    given, w = uploads(), random_w(5)
    torch.testing.assert_close(trimmed(w, given.own, 0.0), mix(w, given.own))


def test_a_trimmed_mean_leaves_out_so_much_at_either_end():
    own = {"x": torch.tensor([[100.0], [1.0], [2.0], [3.0], [-100.0]])}
    found = trimmed(torch.full((5, 5), 0.2), own, 0.3)["x"]  # half of 1 and of 3 is left, and all of 2
    torch.testing.assert_close(found, torch.full((5, 1), 2.0))


@given(st.integers(2, 12), st.integers(0, 1000), st.floats(0, 0.499))
def test_no_minority_carries_a_number_beyond_the_others(clients, seed, share):
    """Liars with less than the trimmed weight move nothing past what honest clients sent."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.rand(clients, clients, generator=generator).softmax(1)
    own = {"x": torch.randn(clients, 3, generator=generator)}
    own["x"][0] = 1e6
    found = trimmed(w, own, share)["x"]
    safe = w[:, 0] < share - 1e-4
    assert (found[safe] <= own["x"][1:].max() + 1e-3).all()


def test_neighbours_and_one_w_a_tensor_are_trimmed_as_the_whole_matrix():
    given = uploads(6)
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    near = nearest(lambda rows: scores[rows], torch.ones(6, dtype=torch.bool), 4)
    w = near.matrix().to_dense()
    torch.testing.assert_close(trimmed(near, given.own, 0.2), trimmed(w, given.own, 0.2))
    torch.testing.assert_close(trimmed(dict.fromkeys(given.own, w), given.own, 0.2), trimmed(w, given.own, 0.2))


def test_rows_in_parts_give_the_same(monkeypatch):
    given, w = uploads(7), random_w(7)
    whole = trimmed(w, given.own, 0.2)
    monkeypatch.setattr("fedctta.uploads.robust.NUMBERS_AT_ONCE", 50)
    torch.testing.assert_close(trimmed(w, given.own, 0.2), whole, rtol=0, atol=0)


@pytest.mark.parametrize("values", [{"cap": 0.0}, {"cap": 1.1}, {"clip": 0.0}, {"trim": 0.5}, {"trim": -0.1}])
def test_values_out_of_range_are_told(values):
    (key,) = values
    with pytest.raises(UserError, match=f"^{key}={values[key]} must "):
        Robust("median", **values)


@pytest.mark.parametrize(("name", "measured"), [("ugsa", False), ("ugsa", True), ("fedavgm", False), ("kin", True)])
def test_a_way_without_effect_is_refused(name, measured):
    aggregator = aggregators.create(name)
    for way in ("cap", "median", "trimmed"):
        with pytest.raises(UserError, match=f"robust={way} has no effect on {name}.*use robust=clip"):
            Robust(way).check(aggregator, measured)
    for way in ("none", "check", "clip"):
        Robust(way).check(aggregator, measured)


@pytest.mark.parametrize(("name", "measured"), [("kin", False), ("fedavg", True), ("ldawa", False)])
def test_a_way_with_an_effect_is_not(name, measured):
    for way in ("cap", "clip", "median", "trimmed"):
        Robust(way).check(aggregators.create(name), measured)


def test_where_most_signals_agree_the_others_are_left_to_say_no():
    """Client 2's statistics are not of one batch: it must not be made to say that they are."""
    source = {"a": torch.zeros(1)}
    fresh, own = torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.tensor([[1.0], [1.0], [9.0], [1.0]])
    uploads = Uploads({"a": own}, {"fresh": fresh}, torch.ones(4, dtype=torch.bool))
    held, _, _ = Robust("clip").admit(uploads, uploads.active, source)
    assert held.signals["fresh"].tolist() == [1, 1, 0, 1]
    assert held.own["a"].tolist() == [[1], [1], [1], [1]]  # a tensor that only one has changed is pulled back


class Broken(Liars):
    """Sends what is no number."""

    def _about(self, true, source, name, key):
        return torch.full_like(true, torch.nan if len(name) % 2 else torch.inf)


@pytest.mark.parametrize("way", ["check", "cap", "clip", "median", "trimmed"])
@pytest.mark.parametrize("aggregator", sorted(aggregators.classes()))
def test_what_is_no_number_harms_nobody_else(aggregator, way, tiny_network):
    method = aggregators.create(aggregator, {"epochs": 2} if aggregator == "fedtsa" else {})
    server = Server(tiny_network, by_vmap, 0, (3, 8, 8), 4, lambda count: torch.zeros(count, 3, 8, 8))
    adapter = adapters.create("bbn" if aggregator == "pfedbbn" else "tent")
    played = Federation(adapter, method, server, stages=(Broken((1,)),), robust=Robust(way))
    state, generator = played.start(), torch.Generator().manual_seed(0)
    everybody, domain = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.int64)
    for t in range(3):
        x = torch.rand(4, 4, 3, 8, 8, generator=generator)
        with torch.no_grad():
            state, outcome = played.play(state, t, x, everybody, domain if method.upper_bound else None)
        assert outcome.logits.isfinite().all()
        assert all(tensor.isfinite().all() for tensor in state.clients.own.values())
        assert all(tensor.isfinite().all() for tensor in state.memory.values())
