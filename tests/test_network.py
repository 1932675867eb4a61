"""A model as a pure function, checked against torch's own modules."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.errors import UserError
from fedctta.network import Network, batch_statistics, refreshed, stored, training


def images(count=6, side=8, seed=1):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_stored_statistics_give_what_eval_mode_gives(tiny_module):
    x = images()
    torch.testing.assert_close(Network(tiny_module)({}, x, stored).logits, tiny_module(x))


def test_batch_statistics_give_what_train_mode_gives(tiny_module):
    x, network = images(), Network(tiny_module)
    expected = tiny_module.train()(x)
    output = network({}, x, training(0.1))
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(output.statistics["1.running_mean"], tiny_module[1].running_mean)
    torch.testing.assert_close(output.statistics["1.running_var"], tiny_module[1].running_var)
    torch.testing.assert_close(network({}, x, refreshed(1.0)).logits, expected)


def test_momentum_blends_old_and_batch_by_hand(tiny_module):
    x = images()
    conv, norm = tiny_module[0], tiny_module[1]
    hidden = conv(x)
    mean = 0.7 * norm.running_mean + 0.3 * hidden.mean((0, 2, 3))
    var = 0.7 * norm.running_var + 0.3 * hidden.var((0, 2, 3), correction=0)
    kept = Network(tiny_module)({}, x, refreshed(0.3)).statistics
    torch.testing.assert_close(kept["1.running_mean"], mean)
    torch.testing.assert_close(kept["1.running_var"], var)


def test_own_tensors_are_laid_over_the_source(tiny_module):
    x, network = images(), Network(tiny_module)
    own = {"5.bias": torch.tensor([10.0, 0.0, 0.0])}
    shifted = network(own, x).logits - network({}, x).logits
    torch.testing.assert_close(shifted, (own["5.bias"] - tiny_module[5].bias).expand_as(shifted))


def test_a_pass_changes_neither_the_network_nor_the_users_module(tiny_module):
    before = {name: tensor.clone() for name, tensor in tiny_module.state_dict().items()}
    network = Network(tiny_module)
    source = {name: tensor.clone() for name, tensor in network.state.items()}
    network({}, images(), training(0.5))
    for name, tensor in tiny_module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    for name, tensor in network.state.items():
        torch.testing.assert_close(tensor, source[name], rtol=0, atol=0)
    assert isinstance(tiny_module[1], nn.BatchNorm2d)


def test_features_are_the_input_of_the_last_linear_layer(tiny_module):
    x = images()
    output = Network(tiny_module)({}, x)
    torch.testing.assert_close(output.features @ tiny_module[5].weight.T + tiny_module[5].bias, output.logits)


def test_one_dimensional_norms_and_norms_without_affine_work():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3)).eval()
    x = torch.rand(4, 3, 2, 2)
    torch.testing.assert_close(Network(module)({}, x).logits, module(x))


def test_a_model_that_is_itself_a_norm_works():
    norm = nn.BatchNorm2d(3).eval()
    x = images()
    torch.testing.assert_close(Network(norm)({}, x).logits, norm(x))


def test_statistics_are_the_biased_ones():
    x = images()
    torch.testing.assert_close(batch_statistics(x).var, x.var((0, 2, 3), correction=0))


def test_norms_that_cannot_be_taken_over_are_refused():
    class Odd(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    with pytest.raises(UserError, match="changes BatchNorm's forward"):
        Network(nn.Sequential(Odd(3)))
    with pytest.raises(UserError, match="track_running_stats"):
        Network(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False)))


def test_a_model_without_norms_or_linear_says_so():
    network = Network(nn.Sequential(nn.Conv2d(3, 3, 8), nn.Flatten()))
    assert not network.has_features
    with pytest.raises(UserError, match="'bn' needs BatchNorm"):
        network.require_norms("bn")


def test_statistics_of_short_numbers_are_summed_in_full():
    x = (3 + torch.randn(64, 5, 9, 9, generator=torch.Generator().manual_seed(0))).bfloat16()
    short, full = batch_statistics(x), batch_statistics(x.float())
    assert short.mean.dtype == short.var.dtype == torch.float32
    torch.testing.assert_close(short, full, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
def test_short_passes_give_nearly_the_same(tiny_module):
    x = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0)).cuda()
    full, short = (Network(tiny_module, "cuda", short=short)({}, x, refreshed()) for short in (False, True))
    assert short.logits.dtype == short.features.dtype == torch.float32
    assert not torch.equal(short.logits, full.logits)
    torch.testing.assert_close(short.logits, full.logits, atol=0.05, rtol=0.05)
    torch.testing.assert_close(short.statistics, full.statistics, atol=0.02, rtol=0.02)
