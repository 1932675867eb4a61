"""Noise on statistics: the budget, and what one image can change."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.core.norms import Statistics, refreshed
from fedctta.keys import LEAST_EPSILON
from fedctta.uploads.privacy import LEAST_VARIANCE, Noise, contributions, delta_of, epsilon_of, noise_for, statistics_of


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 0.3), (1.0, 1.0), (3.0, 1.5)])
def test_delta_is_how_much_more_likely_an_outcome_may_be(epsilon, ratio):
    """By integration: delta = the integral of max(0, p(y) - e^epsilon q(y)) for normals `ratio` apart."""
    y = torch.linspace(-12, 12, 400_001, dtype=torch.float64)
    p, q = (torch.exp(-((y - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (ratio, 0.0))
    excess = torch.trapezoid((p - math.exp(epsilon) * q).clamp_min(0), y)
    assert delta_of(epsilon, ratio) == pytest.approx(float(excess), rel=1e-4)


def test_the_exact_condition_needs_less_noise_than_the_classical_one():
    assert noise_for(0.9, 1e-5) < math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9


@given(st.floats(0.01, 100), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_noise_undoes_epsilon(epsilon, delta):
    noise = noise_for(epsilon, delta)
    assert delta_of(epsilon, 1 / noise) == pytest.approx(delta, rel=1e-3)
    assert epsilon_of(1 / noise, delta) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("epsilon", [LEAST_EPSILON, 1e-4, 8.0, 1e5])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 0.5])
def test_noise_is_exact_for_small_and_large_budgets(epsilon, delta):
    ratio = 1 / mpmath.mpf(noise_for(epsilon, delta))
    with mpmath.workdps(50):
        exact = mpmath.ncdf(ratio / 2 - epsilon / ratio) - mpmath.exp(epsilon) * mpmath.ncdf(
            -ratio / 2 - epsilon / ratio
        )
        assert float(exact / delta) == pytest.approx(1, rel=1e-5)


def test_large_epsilons_do_not_overflow():
    assert delta_of(5000.0, 50.0) == 0.0
    assert 1000 < epsilon_of(50.0, 1e-5) < 5000
    assert delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(1e-9, 1e-5) == 0.0


# Of dp-accounting 0.6.0: PLDAccountant(value_discretization_interval=1e-4), `rounds` times GaussianDpEvent(noise).
ACCOUNTED = [
    (4.0, 1, 1e-5, 0.926342),
    (4.0, 16, 1e-5, 4.377178),
    (10.0, 100, 1e-5, 4.377178),
    (10.0, 1000, 1e-5, 17.856587),
    (2.0, 50, 1e-6, 22.424516),
]


@pytest.mark.parametrize(("noise", "rounds", "delta", "epsilon"), ACCOUNTED)
def test_rounds_add_up_as_a_public_accountant_says(noise, rounds, delta, epsilon):
    assert Noise(noise).spent(delta, rounds)["epsilon_all_rounds"] == pytest.approx(epsilon, rel=1e-6)


def test_rounds_add_up():
    spent = Noise(10.0).spent(1e-5, rounds=100)
    assert spent["epsilon"] == pytest.approx(epsilon_of(0.1, 1e-5))
    assert spent["epsilon_all_rounds"] == pytest.approx(epsilon_of(1.0, 1e-5))
    assert "epsilon" not in Noise(0.0).spent(1e-5, rounds=100)


@given(st.integers(0, 1000), st.floats(0.05, 3))
def test_no_image_contributes_more_than_its_bound(seed, radius):
    generator = torch.Generator().manual_seed(seed)
    x = 10 * torch.randn(4, 5, 3, 3, generator=generator)
    v = contributions(x, Statistics(torch.zeros(5), torch.full((5,), 0.3)), radius)
    assert v.shape == (4, 2, 5)
    assert (v.flatten(1).norm(dim=1) <= radius * math.sqrt(10) * (1 + 1e-5)).all()


def test_within_the_bound_moments_are_exact():
    x = torch.randn(6, 5, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    source = Statistics(torch.randn(5, dtype=torch.float64), torch.rand(5, dtype=torch.float64) + 0.5)
    found = statistics_of(contributions(x, source, 100.0).mean(0), source)
    torch.testing.assert_close(found.mean, x.mean((0, 2, 3)))
    torch.testing.assert_close(found.var, x.var((0, 2, 3), correction=0))


def test_inputs_without_pixels_work_too():
    v = contributions(torch.ones(3, 5), Statistics(torch.zeros(5), torch.ones(5)), 1.0)
    assert torch.equal(v, torch.stack([torch.ones(3, 5), torch.zeros(3, 5)], 1))


def test_without_noise_or_bound_the_release_is_the_batch(tiny_network):
    x = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), device="cpu").to(tiny_network.device)
    key = torch.tensor(1, device=tiny_network.device)
    found = Noise(0.0, radius=1000.0).release(tiny_network, key, x)
    (layer,), expected = tiny_network.norms, tiny_network({}, x, refreshed(1.0)).statistics
    least = LEAST_VARIANCE * tiny_network.state[f"{layer}.running_var"]
    expected[f"{layer}.running_var"] = expected[f"{layer}.running_var"].maximum(least)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_one_image_moves_a_layer_by_its_sensitivity_at_most(tiny_network):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, 8, 8, generator=generator)
    other = torch.cat([1000 * torch.rand(1, 3, 8, 8, generator=generator), x[1:]])
    (layer,) = tiny_network.norms
    source = Statistics(*(tiny_network.state[f"{layer}.running_{s}"] for s in ("mean", "var")))
    inputs = []

    def spy(name, z, old):
        inputs.append(z)
        return old, old

    for images in (x, other):
        tiny_network({}, images.to(tiny_network.device), spy)
    moved = contributions(inputs[0], source, 1.0).mean(0) - contributions(inputs[1], source, 1.0).mean(0)
    assert 0 < float(moved.norm()) <= 2 * math.sqrt(8) / 4


def test_noise_has_the_stated_size(tiny_network):
    """Over many keys: deviation of the released means = noise x sensitivity x the source's deviation."""
    x = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(tiny_network.device)
    (layer,) = tiny_network.norms
    noise = Noise(0.5)
    means = torch.stack(
        [noise.release(tiny_network, torch.tensor(k, device=x.device), x)[f"{layer}.running_mean"] for k in range(1000)]
    )
    deviation = tiny_network.state[f"{layer}.running_var"].sqrt()
    expected = 0.5 * 2 * math.sqrt(8) / 10 * deviation
    torch.testing.assert_close(means.std(0), expected, rtol=0.1, atol=0)


def test_variances_stay_positive(tiny_network):
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(tiny_network.device)
    (layer,) = tiny_network.norms
    for k in range(20):
        released = Noise(50.0).release(tiny_network, torch.tensor(k, device=x.device), x)
        assert (released[f"{layer}.running_var"] > 0).all()
