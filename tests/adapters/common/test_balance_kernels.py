"""Balanced statistics by kernels are those of plain torch, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.common.balanced import balanced
from fedctta.core import gpu_kernels
from fedctta.core.norms import Statistics

CLIENTS, IMAGES, CLASSES, CHANNELS = 3, 6, 5, 40
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
@pytest.mark.parametrize("correction", [0, 1])
def test_statistics_and_gradients_are_plain_torchs(correction, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(CLIENTS, IMAGES, CHANNELS, 4, 4, generator=generator).to(DEVICE)
    mean, var = torch.rand(2, CLIENTS, CLASSES, CHANNELS, generator=generator).to(DEVICE).unbind()
    var[:, :2] = 0  # where a variance is held at 0
    labels = F.one_hot(torch.randint(CLASSES - 1, (CLIENTS, IMAGES), generator=generator), CLASSES).float().to(DEVICE)

    def of_client(x, mean, var, labels):
        def loss(x):
            after = {}
            rule = balanced({"balanced.a.mean": mean, "balanced.a.var": var}, after, labels, 0.3, 0.0, correction)
            used, _ = rule("a", x, Statistics(mean[0], var[0]))
            return (used.mean.sin() * used.var.cos()).sum(), (used, after)

        return torch.func.grad(loss, has_aux=True)(x)

    found = torch.func.vmap(of_client)(x, mean, var, labels)
    monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
    torch.testing.assert_close(found, torch.func.vmap(of_client)(x, mean, var, labels), atol=1e-5, rtol=1e-4)
