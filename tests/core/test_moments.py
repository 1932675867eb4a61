"""Moments and their gradient against torch's own."""

from __future__ import annotations

import pytest
import torch

from fedctta.core.moments import LARGE, _of_parts, moments

OVER = [(0, 2, 3), (2, 3), (0,)]


@pytest.mark.parametrize("over", OVER)
def test_mean_variance_and_gradient_are_torchs(over):
    x = torch.randn(4, 3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def ours(x):
        mean, var = moments(x, over)
        return (mean.sin() * var.cos()).sum()

    def theirs(x):
        var, mean = torch.var_mean(x, dim=over, correction=0)
        return (mean.sin() * var.cos()).sum()

    torch.testing.assert_close(torch.func.grad_and_value(ours)(x), torch.func.grad_and_value(theirs)(x))
    many = torch.stack([x, 2 * x])
    each = torch.stack([torch.func.grad(theirs)(part) for part in many])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(ours))(many), each)


@pytest.mark.parametrize("over", OVER)
def test_short_numbers_are_summed_in_full(over):
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        mean, var = moments(x, over)
    expected_var, expected_mean = torch.var_mean(x.double(), dim=over, correction=0)
    assert mean.dtype == var.dtype == torch.float32
    torch.testing.assert_close(mean.double(), expected_mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(var.double(), expected_var, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [4, 160])  # all clients at once, and one after another
@pytest.mark.parametrize("graded", [False, True])
def test_clients_on_their_own_and_together(size, graded):
    x = 3 + torch.randn(3, 2, size, size, 5, generator=torch.Generator().manual_seed(0)).movedim(-1, 2)
    assert (x[0].numel() >= LARGE) == (size > 4)
    with torch.set_grad_enabled(graded):
        mean, var = torch.func.vmap(lambda one: moments(one, (0, 2, 3)))(x)
        alone = [moments(one, (0, 2, 3)) for one in x]
    expected_var, expected_mean = torch.var_mean(x.double(), dim=(1, 3, 4), correction=0)
    for found in (mean, torch.stack([one for one, _ in alone])):
        torch.testing.assert_close(found.double(), expected_mean, atol=1e-6, rtol=2e-5)
    for found in (var, torch.stack([one for _, one in alone])):
        torch.testing.assert_close(found.double(), expected_var, atol=1e-6, rtol=2e-5)


@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (4, 3, 2, 2), (4, 3, 70), (4, 3)])
@pytest.mark.parametrize("clients", [(), (2,)])
def test_large_images_are_summed_up_one_by_one(shape, clients):
    x = torch.randn(*clients, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    over = tuple(len(clients) + d for d in range(len(shape)) if d != 1)
    mean, var = _of_parts(x, over)
    torch.testing.assert_close((var, mean), torch.var_mean(x, dim=over, correction=0))
