"""Early features: which they are, on any model, and how far domains are apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.adapters.common.early_features import LEAST_VARIANCE, count_channels, distance, early_statistics
from fedctta.core.network import Network
from fedctta.core.norms import Statistics
from fedctta.errors import UserError

X = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Tokens(nn.Module):
    """Pixels as tokens, LayerNorm, Linear."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.norm(self.embed(x.flatten(2).mT)).mean(1))


def test_they_are_the_input_of_the_first_norm_of_the_source(tiny_module):
    found = early_statistics(Network(tiny_module), X)
    features = tiny_module[0](X).movedim(1, 0).flatten(1).detach()
    torch.testing.assert_close(found.mean, features.mean(1))
    torch.testing.assert_close(found.var, features.var(1))


def test_channels_come_last_in_a_layer_norm():
    module = Tokens()
    network = Network(module)
    features = module.embed(X.flatten(2).mT).flatten(0, 1).detach()
    found = early_statistics(network, X)
    assert count_channels(network) == len(found.mean) == 5
    torch.testing.assert_close(found.mean, features.mean(0))
    torch.testing.assert_close(found.var, features.var(0))


def test_group_norm_sees_channels_second():
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(216, 2))
    assert early_statistics(Network(module), X).mean.shape == (6,)


def test_the_model_is_as_before(tiny_network):
    before = tiny_network({}, X).logits
    early_statistics(tiny_network, X)
    assert torch.equal(tiny_network({}, X).logits, before)


def test_they_can_be_lifted(tiny_network):
    several = torch.stack([X, X + 1])
    lifted = torch.func.vmap(lambda x: early_statistics(tiny_network, x))(several)
    torch.testing.assert_close(lifted.mean[1], early_statistics(tiny_network, X + 1).mean)


def test_what_never_changes_has_a_least_variance(tiny_network):
    assert (early_statistics(tiny_network, torch.zeros(1, 3, 1, 1)).var == LEAST_VARIANCE).all()


def test_a_layer_that_is_not_called_is_told():
    class Idle(Tokens):
        def forward(self, x):
            return self.head(self.embed(x.flatten(2).mT).mean(1))

    with pytest.raises(UserError, match="layer 'norm' is not called"):
        early_statistics(Network(Idle()), X)


def test_the_distance_by_hand():
    one = Statistics(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    other = Statistics(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0]))
    # (1 + 1) / 4 + (2 + 1) / 2 - 1 = 1 in the first channel, 0 in the second
    assert distance(one, other) == distance(other, one) == 0.5
    assert distance(one, one) == 0


def test_the_distance_is_the_divergence_in_both_directions():
    normal = torch.distributions.Normal
    one, other = normal(0.3, 0.7), normal(-0.5, 1.4)
    kl = torch.distributions.kl_divergence
    mine = distance(*(Statistics(p.mean[None], p.variance[None]) for p in (one, other)))
    torch.testing.assert_close(mine, kl(one, other) + kl(other, one))
