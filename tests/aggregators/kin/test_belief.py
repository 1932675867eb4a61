"""Beliefs and founding by hand: a filter step, likeness, and who is heard."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from fedctta.aggregators import Uploads
from fedctta.aggregators.kin import belief
from fedctta.aggregators.kin.belief import (
    compare_looks,
    found_domain,
    hear,
    measure_distances,
    take_median,
    update_belief,
    update_domains,
)
from fedctta.core.appearance import NUMBERS


def everyone(count):
    return torch.ones(count, dtype=torch.bool)


def upload(looks, active=None, trust=None, images=10.0, spread=1.0):
    look = torch.tensor(looks)[:, None] * torch.ones(NUMBERS)
    said = {"look": look, "spread": torch.full_like(look, spread), "images": torch.full((len(look),), images)}
    return Uploads({}, said, everyone(len(look)) if active is None else torch.tensor(active), None, trust)


def test_a_belief_by_hand():
    """Two domains met, 4 batches or 1; spread of a domain and of everybody shrunk together."""
    looks = torch.tensor([0.0, 0.3, 0.0])[:, None] * torch.ones(NUMBERS)
    memory = {
        "belief": torch.tensor([[0.7, 0.1, 0.0, 0.2]]),
        "weight": torch.tensor([4.0, 1.0, 0.0]),
        "look": looks,
        "spread": torch.full_like(looks, 2.0),
    }
    said = hear(upload([0.1]), tolerance=0.05)
    belief, replaced = update_domains(said, memory, hazard=0.2, tolerance=0.05, strange=5.0)
    prior = 0.8 * torch.tensor([0.7, 0.1, 0.2]) + 0.2 / 3
    widths = [(4 * 2 + 1) / 5, (1 * 2 + 1) / 2]
    scales = [(w * (0.1 * (1 + 1 / n) + 0.05)) ** 0.5 for w, n in zip(widths, (4, 1), strict=True)]
    fits = [
        NUMBERS * Normal(centre, s).log_prob(torch.tensor(0.1)) for centre, s in zip((0.0, 0.3), scales, strict=True)
    ]
    strange = NUMBERS * Normal(0.0, 5.0**0.5).log_prob(torch.tensor(0.0))
    expected = (prior.log() + torch.stack([*fits, strange])).softmax(0)
    torch.testing.assert_close(belief[0, [0, 1, 3]], expected, atol=1e-5, rtol=1e-4)
    assert belief[0, 2] == 0
    assert not replaced.any()


def test_the_absent_the_late_and_what_cannot_be():
    """Client 1 is absent, 2 says what is no number; 3 is late and counts by half."""
    said = hear(upload([1.0, 2.0, torch.nan, 4.0], trust=torch.tensor([1.0, 0.0, 1.0, 0.5])), tolerance=0.05)
    assert said.heard.tolist() == [True, False, False, True]
    assert said.trust.tolist() == [1, 0, 0, 0.5]
    assert said.look[:, 0].tolist() == [1, 0, 0, 4]
    assert said.spread[:, 0].tolist() == [1, 0, 0, 1]
    assert said.error[0].item() == pytest.approx(1 / 10 + 0.05)
    assert hear(upload([1.0, 2.0], [True, False]), 0.05).heard.tolist() == [True, False]
    assert not hear(upload([1.0], spread=-1.0), 0.05).heard.any()
    assert not hear(upload([1.0], images=0.0), 0.05).heard.any()


def test_likeness_by_hand():
    look = torch.tensor([[0.0], [0.7]]) * torch.ones(NUMBERS)
    same = NUMBERS * Normal(0.0, 0.5).log_prob(torch.tensor(0.7))
    other = NUMBERS * Normal(0.0, (0.25 * 8) ** 0.5).log_prob(torch.tensor(0.0))
    odds = (same - other).sigmoid()
    found_ = compare_looks(look, torch.full((NUMBERS,), 0.25), torch.tensor(8.0))
    torch.testing.assert_close(found_[0, 1], odds, atol=1e-5, rtol=1e-4)
    assert found_[0, 0] > 0.9999


def test_likeness_is_by_differences_however_far_from_zero():
    """Looks of 30 that differ in the fifth digit, in units of a tiny variance."""
    look = 30 + 4e-4 * torch.rand(6, NUMBERS, generator=torch.Generator().manual_seed(0))
    variance, strange = torch.full((NUMBERS,), 4e-9), torch.tensor(8.0)
    apart = ((look[:, None].double() - look) / (variance + 1e-8).sqrt().double()).square().sum(-1)
    expected = (0.5 * (NUMBERS * strange.log() - apart)).sigmoid()
    assert expected.min() < 0.1
    torch.testing.assert_close(compare_looks(look, variance, strange), expected.float(), atol=1e-3, rtol=0)


def test_distances_are_by_differences_however_far_from_zero():
    """Looks of 30 that differ in the fifth digit, in units of a tiny variance."""
    generator = torch.Generator().manual_seed(0)
    rows, centres = (30 + 4e-4 * torch.rand(count, NUMBERS, generator=generator) for count in (6, 4))
    variance = 1e-8 * (1 + torch.rand(4, NUMBERS, generator=generator))
    apart = (rows[:, None].double() - centres).square() / variance.double()
    torch.testing.assert_close(measure_distances(rows, centres, variance), apart.sum(-1).float(), atol=1e-3, rtol=1e-5)


def test_the_median_is_over_those_heard():
    rows, heard = torch.tensor([[3.0], [1.0], [9.0], [2.0]]), torch.tensor([True, True, False, True])
    assert take_median(rows, heard).tolist() == [2]
    assert take_median(rows, everyone(4)).tolist() == [2]
    assert take_median(rows, ~everyone(4)).tolist() == [1]


def test_the_client_with_most_peers_founds_a_domain_in_the_lightest_place():
    belief = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    like = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.9, 1.0], [0.0, 0.9, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]])
    after, here = found_domain(belief, like, everyone(4), torch.tensor([5.0, 3.0]))
    assert here.tolist() == [False, True]
    assert after[:, 1].tolist() == [0, 1, 1, 0]
    torch.testing.assert_close(after.sum(1), torch.ones(4))
    assert after[0].tolist() == [0, 0, 1]


def test_nobody_founds_a_domain_when_all_are_known():
    belief = torch.tensor([[0.6, 0.0, 0.4], [0.0, 1.0, 0.0]])
    after, here = found_domain(belief, torch.ones(2, 2), everyone(2), torch.tensor([5.0, 3.0]))
    assert not here.any()
    torch.testing.assert_close(after, belief)


def test_where_no_client_may_found_a_domain_nothing_is_compared(monkeypatch):
    looks = torch.tensor([0.0, 9.0])[:, None] * torch.ones(NUMBERS)
    memory = {"belief": torch.tensor([[1.0, 0, 0]] * 3), "weight": torch.tensor([9.0, 9.0])}
    memory |= {"look": looks, "spread": torch.full_like(looks, 2.0)}
    said = hear(upload([0.0, 0.1, 0.0], active=[True, True, False]), 0.01)
    rates = {"hazard": 0.1, "tolerance": 0.01, "strange": 7.0}
    known = update_belief(said, take_median(said.spread, said.heard), memory, **rates)
    expected = found_domain(known, torch.ones(3, 3), said.heard, memory["weight"])
    monkeypatch.setattr(belief, "compare_looks", lambda *args: pytest.fail("compared"))
    found = update_domains(said, memory, **rates)
    assert not found[1].any()
    assert all(map(torch.equal, found, expected))
