"""The yardstick that is told the domains."""

from __future__ import annotations

import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.mixing import restrict
from fedctta.aggregators.oracle import Oracle

UPLOADS = Uploads({}, {}, torch.ones(4, dtype=torch.bool), torch.tensor([7, 3, 7, 7]))


def test_averages_exactly_those_who_share_a_domain():
    weights, _ = Oracle().collaborate(None, UPLOADS, {})
    third = torch.tensor(1 / 3).item()
    assert weights.tolist() == [
        [third, 0, third, third],
        [0, 1, 0, 0],
        [third, 0, third, third],
        [third, 0, third, third],
    ]


def test_those_present_share_the_weight_of_those_absent():
    active = torch.tensor([True, True, False, True])
    weights, _ = Oracle().collaborate(None, UPLOADS._replace(active=active), {})
    assert restrict(weights, active)[0].tolist() == [0.5, 0, 0, 0.5]


def test_it_is_marked_as_no_method():
    assert Oracle.upper_bound
