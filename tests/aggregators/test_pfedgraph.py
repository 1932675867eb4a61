"""pFedGraph's weights: by hand, and against a generic solver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from torch import nn

from fedctta.aggregators import Uploads
from fedctta.aggregators.pfedgraph import PFedGraph, project_to_simplex
from fedctta.core.network import Network
from fedctta.errors import UserError

ALL = torch.ones(3, dtype=torch.bool)
SERVER = SimpleNamespace(network=SimpleNamespace(state={"a": torch.tensor([1.0, 1.0])}))
# Updates from (1, 1): (3, 4), (4, 3) and (0, -5), with cosines 0.96, -0.8 and -0.6.
OWN = {"a": torch.tensor([[4.0, 5.0], [5.0, 4.0], [1.0, -4.0]])}


def weigh(aggregator, own=OWN, active=ALL, signals=None):
    weights, memory = aggregator.collaborate(SERVER, Uploads(own, signals or {}, active), {})
    assert memory == {}
    torch.testing.assert_close(weights.sum(1), torch.ones(len(active)), atol=1e-6, rtol=0)
    return weights


def test_the_paper_by_hand():
    """With lambda = 1: rows of 1/3 + cos / 2, then the projection."""
    weights = weigh(PFedGraph(lam=1.0, snap=False))
    # Row 0: cosines 1, 0.96, -0.8. The third falls out: the first two share 1 and differ by 0.02.
    torch.testing.assert_close(weights[0], torch.tensor([0.51, 0.49, 0.0]))
    # Row 2: cosines -0.8, -0.6, 1. The third leads the second by 0.8 and the first by 0.9, which falls out.
    torch.testing.assert_close(weights[2], torch.tensor([0.0, 0.1, 0.9]))


def test_a_large_lambda_keeps_everybody():
    """With lambda = 10, row 0 is 1/3 + (cos - mean cos) / 20, the mean being 1.16 / 3."""
    weights = weigh(PFedGraph(lam=10.0, snap=False))
    mean = 1.16 / 3
    expected = torch.tensor([1 / 3 + (c - mean) / 20 for c in (1, 0.96, -0.8)])
    torch.testing.assert_close(weights[0], expected)


def test_similar_enough_is_the_same():
    weights = weigh(PFedGraph(lam=1.0))
    torch.testing.assert_close(weights[:2], torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]))


def test_the_code_compares_statistics_without_the_snap():
    own = {"a": torch.tensor([[3.0, 4.0], [4.0, 3.0]])}
    weights = weigh(PFedGraph(lam=1.0, variant="code"), own, ALL[:2])
    torch.testing.assert_close(weights, torch.tensor([[0.51, 0.49], [0.49, 0.51]]))


def test_the_code_compares_features_with_the_snap():
    signals = {"feature": torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, 5.0]])}  # cosines 0.96, 0.8 and 0.6
    weights = weigh(PFedGraph(lam=1.0, variant="code"), signals=signals)
    # Row 0: 1, 1 (snapped), 0.8 less their mean, halved, around 1/3.
    torch.testing.assert_close(weights[0], torch.tensor([11, 11, 8]) / 30)


def test_nothing_moved_yet():
    own = {"a": torch.ones(3, 2)}
    torch.testing.assert_close(weigh(PFedGraph(), own), torch.full((3, 3), 1 / 3))


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_the_absent_count_for_nothing(variant):
    present = torch.tensor([True, True, False])
    weights = weigh(PFedGraph(variant=variant, snap=False), active=present)
    pair = weigh(PFedGraph(variant=variant, snap=False), {"a": OWN["a"][:2]}, ALL[:2])
    torch.testing.assert_close(weights[:2, :2], pair)
    assert (weights[:, 2] == 0).all()


def test_alone():
    assert weigh(PFedGraph(), {"a": OWN["a"][:1]}, ALL[:1]).tolist() == [[1]]


def test_only_the_last_client_receives():
    weights = weigh(PFedGraph(receivers="last"))
    assert weights[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    torch.testing.assert_close(weights[2], weigh(PFedGraph())[2])


def test_projection_by_hand():
    v = torch.tensor([[0.5, 0.5], [3.0, 0.0], [0.75, 0.75], [-5.0, -4.5]])
    expected = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5], [0.25, 0.75]])
    torch.testing.assert_close(project_to_simplex(v, ALL[:2]), expected)
    masked = project_to_simplex(torch.tensor([9.0, 0.2, 0.4]), torch.tensor([False, True, True]))
    torch.testing.assert_close(masked, torch.tensor([0.0, 0.4, 0.6]))


def solve(d, p, lam):
    """The programme as it stands, by sequential quadratic programming; its weak last digits by the multiplier."""
    n = len(d)
    generic = minimize(
        lambda x: lam * ((x - p) ** 2).sum() + d @ x,
        np.full(n, 1 / n),
        jac=lambda x: 2 * lam * (x - p) + d,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x

    def at(multiplier):  # where the gradient 2 lam (x - p) + d + multiplier is 0, or x at its bound
        return np.maximum(p - (d + multiplier) / (2 * lam), 0)

    exact = at(brentq(lambda multiplier: at(multiplier).sum() - 1, -100, 100, xtol=1e-14, rtol=1e-14))
    return generic, exact


def test_the_projection_solves_the_programme():
    random = np.random.default_rng(0)
    for _ in range(100):
        n, lam = int(random.integers(1, 30)), float(random.choice([0.01, 0.1, 0.8, 5]))
        d, p = random.uniform(-1, 1, n), random.dirichlet(np.ones(n))
        v = torch.from_numpy(p - d / (2 * lam))
        ours = project_to_simplex(v, torch.ones(n, dtype=torch.bool)).numpy()
        generic, exact = solve(d, p, lam)
        np.testing.assert_allclose(ours, generic, atol=1e-6)
        np.testing.assert_allclose(ours, exact, atol=1e-10)


@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_projection_lies_on_the_simplex_and_is_idempotent(rows):
    active = torch.tensor([True, False, True, True])
    x = project_to_simplex(torch.tensor(rows, dtype=torch.float64), active)
    assert (x >= 0).all()
    assert (x[:, 1] == 0).all()
    torch.testing.assert_close(x.sum(1), torch.ones(len(rows), dtype=torch.float64))
    torch.testing.assert_close(project_to_simplex(x, active), x)


def test_many_clients_in_single_precision():
    v = torch.randn(200, 1000, generator=torch.Generator().manual_seed(0))
    active = torch.arange(1000) % 3 > 0
    exact = project_to_simplex(v.double(), active)
    torch.testing.assert_close(project_to_simplex(v, active).double(), exact, atol=1e-6, rtol=0)


def test_impossible_parameters_and_models_are_refused():
    with pytest.raises(UserError, match="must be above 0"):
        PFedGraph(lam=0)
    network = Network(nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten()))
    PFedGraph().check(network, network.state)
    with pytest.raises(UserError, match=r"pfedgraph\.variant=paper"):
        PFedGraph(variant="code").check(network, network.state)
