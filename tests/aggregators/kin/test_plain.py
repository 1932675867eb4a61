"""The matrix and the beliefs of one round, by hand."""

from __future__ import annotations

import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.kin import plain
from fedctta.core.appearance import NUMBERS

RATES = {"tolerance": 0.01, "strange": 7.0, "horizon": 500.0}


def everyone(count):
    return torch.ones(count, dtype=torch.bool)


def upload(looks, active):
    look = torch.tensor(looks)[:, None] * torch.ones(NUMBERS)
    signals = {"look": look, "spread": torch.ones_like(look), "images": torch.full((len(look),), 10.0)}
    return Uploads({}, signals, active)


def knowing(domains, belief):
    """Make a memory of domains (look, weight) with spread 2."""
    looks, weights = torch.tensor(domains).T
    look = looks[:, None] * torch.ones(NUMBERS)
    return {"belief": torch.tensor(belief), "weight": weights, "look": look, "spread": torch.full_like(look, 2.0)}


def test_an_absent_client_is_not_in_a_domain_that_gave_way():
    memory = knowing([(0.0, 9.0), (5.0, 1.0)], [[1.0, 0, 0], [1.0, 0, 0], [0.3, 0.6, 0.1]])
    uploads = upload([50.0, 50.0, 0.0], torch.tensor([True, True, False]))
    _, after = plain.update_all(None, uploads, memory, hazard=0.1, **RATES)
    torch.testing.assert_close(after["belief"], torch.tensor([[0, 1.0, 0], [0, 1.0, 0], [0.3, 0, 0.1]]))


def test_the_matrix_by_hand():
    """Clients 0 and 1 are in one domain and 2 in another, as far as is believed; the rest of a row is one's own."""
    memory = knowing([(0.0, 9.0), (5.0, 9.0)], [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    weights, after = plain.update_all(None, upload([0.0, 0.1, 5.1], everyone(3)), memory, hazard=0.2, **RATES)
    b = after["belief"]
    expected = torch.zeros(3, 3)
    for i in range(3):
        for j in range(3):
            for k in range(2):
                expected[i, j] += b[i, k] * b[j, k] / b[:, k].sum()
        expected[i, i] += b[i, 2]
    torch.testing.assert_close(weights.matrix(), expected, atol=1e-6, rtol=0)
    assert expected[0, 1] > 0.4
    assert expected[2, 2] > 0.9
