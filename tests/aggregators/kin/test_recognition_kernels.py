"""Single kernels: what several of them, one after another, might hide (`test_fused`)."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from fedctta.aggregators.kin.belief import TINY, compare_looks, take_median
from fedctta.core.appearance import NUMBERS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FIXED = {"D": NUMBERS, "TINY": TINY}


def numbers(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.triton
@pytest.mark.parametrize("heard", [0, 1, 2, 7, 8])
def test_the_median_is_that_of_those_heard(heard):
    """The lower of two, exactly; of many equal numbers, of zeros, and 1 where nobody is heard."""
    kernels = import_module("fedctta.aggregators.kin.recognition_kernels")
    n, look, spread = 9, numbers(9, NUMBERS), numbers(9, NUMBERS, seed=1)
    spread[:, 0], spread[:, 1], spread[:, 2] = 0.25, 0.0, spread[:, 2] * 1e30
    trust = (torch.arange(n) < heard).float().to(DEVICE)
    heed, usual, typical = look.new_empty(n), look.new_empty(NUMBERS), look.new_empty(1)
    images = torch.full_like(trust, 4.0)
    kernels.hear_kernel[(NUMBERS,)](
        look, spread, images, trust, look, look, look, heed, heed, usual, typical, n, 0, 0.5,
        **FIXED, BLOCK=16, R=4, C=16,
    )  # fmt: skip
    torch.testing.assert_close(usual, take_median(spread, trust > 0), atol=0, rtol=0)
    assert torch.equal(heed, trust)
    assert typical.item() == pytest.approx(0.75 if heard else 0, abs=1e-6)


@pytest.mark.triton
@pytest.mark.parametrize(("doubt", "compared"), [(0.51, True), (0.49, False)])
def test_looks_are_compared_where_a_client_may_found_a_domain(doubt, compared):
    kernels = import_module("fedctta.aggregators.kin.recognition_kernels")
    n, look, usual, typical = 9, 0.2 * numbers(9, NUMBERS), 1 + numbers(NUMBERS), numbers(1)
    unknown = 0.4 * numbers(n, seed=1)
    unknown[4] = doubt
    score = look.new_empty(n)
    kernels.compare_kernel[(3,)](
        look, torch.ones_like(unknown), unknown, usual, typical, score, n, 7.0, **FIXED, BLOCK=16, N=4, M=4
    )
    expected = unknown * (compare_looks(look, 2 * typical * usual, 7.0 / typical) @ unknown)
    torch.testing.assert_close(score, expected if compared else torch.zeros_like(score))
    assert (expected > 0).all()
