"""TTA-bn against BatchNorm in training mode, and its refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.adapters.bn import BatchStatistics
from fedctta.core.network import Network
from fedctta.errors import UserError


def test_predicts_with_the_statistics_of_the_batch(tiny_module, tiny_network):
    x, adapter = torch.rand(6, 3, 8, 8), BatchStatistics()
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), x)
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), tiny_module.train()(x))


def test_nothing_of_earlier_batches_is_kept_without_momentum(tiny_network):
    adapter, (first, second) = BatchStatistics(), torch.rand(2, 6, 3, 8, 8)
    start = adapter.init(tiny_network)
    once = adapter.adapt(tiny_network, start, second)
    twice = adapter.adapt(tiny_network, adapter.adapt(tiny_network, start, first), second)
    for name in once.own:
        torch.testing.assert_close(once.own[name], twice.own[name])


def test_only_statistics_are_owned(tiny_network):
    assert set(BatchStatistics().init(tiny_network).own) == {"1.running_mean", "1.running_var"}


def test_refuses_what_gives_no_statistics(tiny_network):
    with pytest.raises(UserError, match="batch=2 or more"):
        BatchStatistics().check(tiny_network, 1)
    BatchStatistics(momentum=0.1).check(tiny_network, 1)
    with pytest.raises(UserError, match="needs BatchNorm"):
        BatchStatistics().check(Network(nn.Linear(3, 2)), 10)
    with pytest.raises(UserError, match="above 0 and up to 1"):
        BatchStatistics(momentum=0)
