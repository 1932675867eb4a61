"""Statistics of batches and the rules of passes, checked against torch and by hand."""

from __future__ import annotations

import torch

from fedctta.core.network import Network
from fedctta.core.norms import batch_statistics, refreshed, stored, training


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


def test_statistics_are_the_biased_ones():
    x = images()
    torch.testing.assert_close(batch_statistics(x).var, x.var((0, 2, 3), correction=0))


def test_statistics_of_short_numbers_are_summed_in_full():
    x = (3 + torch.randn(64, 5, 9, 9, generator=torch.Generator().manual_seed(0))).bfloat16()
    short, full = batch_statistics(x), batch_statistics(x.float())
    assert short.mean.dtype == short.var.dtype == torch.float32
    torch.testing.assert_close(short, full, atol=1e-4, rtol=1e-4)
