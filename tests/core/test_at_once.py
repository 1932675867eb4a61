"""Variants of one model, for models that vmap can run and for those it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.core.at_once import at_once
from fedctta.core.network import Network


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


@pytest.mark.parametrize(
    ("module", "batches"), [(nn.Sequential(nn.Flatten(), nn.Linear(30, 3)), True), (Recurrent(), False)]
)
def test_variants_are_run_by_vmap_or_one_after_another(module, batches):
    network, x = Network(module), torch.rand(4, 2, 5, 6)
    with torch.no_grad():
        found = [at_once(network, lambda one: network({}, one).logits)(x) for _ in range(2)]
        for logits in found:
            torch.testing.assert_close(logits, torch.stack([network({}, one).logits for one in x]))
    assert network.batches is batches


def test_what_is_wrong_otherwise_is_told_and_not_remembered():
    network = Network(nn.Linear(30, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        at_once(network, lambda one: network({}, one).logits)(torch.rand(4, 2, 5))
    assert network.batches
