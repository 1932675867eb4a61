"""Single kernels: what a whole book, kept by all of them (`test_fused_notebook`), might hide."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLIENTS, WIDTH = 2, 150


def numbers(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def rows(domains, seed=0):
    """Return rows[N, K, S] between which there are others."""
    return numbers(CLIENTS, 2 * domains, WIDTH, seed=seed)[:, ::2]


@pytest.mark.triton
@pytest.mark.parametrize("domains", [3, 40])
def test_rows_of_other_domains_keep_their_bits(domains):
    kernels = import_module("fedctta.books.notebook_kernels")
    part, row, kept = rows(domains), numbers(CLIENTS, WIDTH, seed=1), numbers(CLIENTS, domains, seed=2)
    belief = numbers(CLIENTS, domains + 1, seed=3)
    changed = torch.arange(CLIENTS * domains, device=DEVICE).view(CLIENTS, domains)
    time = torch.tensor([1_000, 2_000], device=DEVICE)
    found, since = kernels.add(part, row, [belief, kept, changed, time], heed=0.5)
    there = belief[:, :-1] > 0.5
    assert 0 < there.sum() < there.numel()
    assert torch.equal(found[~there], part[~there])
    expected = part * kept[..., None] + belief[:, :-1, None] * row[:, None]
    torch.testing.assert_close(found[there], expected[there])
    assert torch.equal(since, torch.where(there, time[:, None], changed))


@pytest.mark.triton
@pytest.mark.parametrize("domains", [3, 40])
def test_rows_that_count_nothing_are_not_read(domains):
    """A weight of 0 hides even what is no number; the columns begin anywhere."""
    kernels = import_module("fedctta.books.notebook_kernels")
    part, book, measured = rows(domains), rows(domains, seed=1), rows(domains, seed=2)[..., 5]
    small = [
        numbers(CLIENTS, size, seed=size + k) for k, size in enumerate((domains + 1, domains + 1, domains, domains))
    ]
    belief, weights, own, theirs = small
    belief[:, 1], theirs[:, 2] = 0, 0
    part[:, 1], book[:, 1:3] = torch.nan, torch.nan
    images = torch.tensor([4.0, 7.0], device=DEVICE)
    known, batch = kernels.blend(small, measured, (part, book), images, 2.0, slice(7, 148))
    share = belief[:, :-1] * weights[:, :-1] / (measured + images[:, None] + 2)
    both = own[..., None] * part.nan_to_num() + theirs[..., None] * book.nan_to_num()
    torch.testing.assert_close(known, (share[..., None] * both).sum(1)[:, 7:148])
    rest = belief[:, -1] * weights[:, -1] / (images + 2)
    torch.testing.assert_close(batch, images * (share.sum(1) + rest))
