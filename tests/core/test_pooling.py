"""Max-pooling in the order of memory is torch's, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.core.pooling import max_pool, read_pool

LAYERS = [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3), ceil_mode=True), nn.MaxPool2d(2, 1, dilation=2)]


def images(common):
    """Return x[N, B, C, H, W] in the common order, or client after client with channels last."""
    x = torch.randn(2, 7, 8, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.permute(3, 0, 4, 1, 2) if common else x.permute(3, 0, 1, 2, 4).contiguous().permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("common", [False, True])
def test_clients_are_pooled_as_torch_does(layer, common):
    x, pool = images(common), read_pool(layer)

    def ours(x):
        y = max_pool(pool, x)
        return y.sin().sum(), y

    def theirs(x):
        y = layer(x)
        return y.sin().sum(), y

    gradient, y = torch.func.vmap(torch.func.grad(ours, has_aux=True))(x)
    each = [torch.func.grad(theirs, has_aux=True)(one) for one in x]
    torch.testing.assert_close(y, torch.stack([one for _, one in each]))
    torch.testing.assert_close(gradient, torch.stack([one for one, _ in each]))
    torch.testing.assert_close(max_pool(pool, x[0]), layer(x[0]))


def test_the_common_order_stays():
    y = torch.func.vmap(lambda x: max_pool(read_pool(LAYERS[0]), x))(images(common=True))
    assert y.permute(1, 3, 4, 0, 2).is_contiguous()
    shared = images(common=True)[0]
    many = torch.func.vmap(lambda scale: max_pool(read_pool(LAYERS[0]), shared) * scale)(torch.ones(2).double())
    torch.testing.assert_close(many[1], F.max_pool2d(shared, 3, 2, 1))


def test_views_of_clients_are_pooled_too():
    x = images(common=True)
    views = torch.func.vmap(
        lambda one: torch.func.vmap(lambda k: max_pool(read_pool(LAYERS[0]), one * k))(torch.tensor([1.0, -2.0]))
    )(x)
    expected = torch.stack([torch.stack([F.max_pool2d(one * k, 3, 2, 1) for k in (1.0, -2.0)]) for one in x])
    torch.testing.assert_close(views, expected)
