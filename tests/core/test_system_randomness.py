"""Random numbers of the operating system."""

from __future__ import annotations

import torch

from fedctta.core.system_randomness import draw_normal


def test_numbers_are_standard_normal():
    x = draw_normal(200_000)
    assert x.dtype == torch.float64
    assert x.isfinite().all()
    assert abs(float(x.mean())) < 0.015
    assert abs(float(x.std()) - 1) < 0.015
    for quantile, share in ((-1.0, 0.1587), (0.5, 0.6915), (2.0, 0.9772)):
        assert abs(float((x < quantile).double().mean()) - share) < 0.01


def test_no_two_calls_give_the_same():
    assert not torch.equal(draw_normal(8), draw_normal(8))
