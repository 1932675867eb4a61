"""Layers that are taken over compute what torch and other libraries compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.core.network import Network
from fedctta.core.norm_layers import batch_norm
from fedctta.core.norms import refreshed
from fedctta.errors import UserError


def images(count=6, side=8, seed=1):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def scattered(module):
    """Give a module's parameters and statistics values of their own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return module.eval()


class NormAct(nn.BatchNorm2d):
    """A BatchNorm layer with an activation of its own, as libraries of models have them."""

    def forward(self, x):
        y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return F.silu(y, inplace=True)


class Inherited(nn.BatchNorm2d):
    def forward(self, x):
        return F.silu(super().forward(x.roll(1, -1)))


@pytest.mark.parametrize("kind", [NormAct, Inherited])
def test_norms_derived_from_batch_norm_keep_what_they_add(kind):
    torch.manual_seed(0)
    module, x = scattered(nn.Sequential(nn.Conv2d(3, 4, 3), kind(4))), images()
    network = Network(module)
    assert network.norms == ("1",)
    torch.testing.assert_close(network({}, x).logits, module.eval()(x))
    out = network({}, x, refreshed())
    within = module[0](x).detach()
    torch.testing.assert_close(out.statistics["1.running_mean"], within.mean((0, 2, 3)))
    module[1].running_mean, module[1].running_var = within.mean((0, 2, 3)), within.var((0, 2, 3), correction=0)
    torch.testing.assert_close(out.logits, module(x))
    lifted = torch.func.vmap(lambda batch: network({}, batch, refreshed()).logits)(x[None])
    torch.testing.assert_close(lifted[0], out.logits)


def test_a_norm_with_arithmetic_of_its_own_is_refused():
    class Odd(nn.BatchNorm2d):
        def forward(self, x):
            return (x - self.running_mean.view(-1, 1, 1)) * self.weight.view(-1, 1, 1)

    with pytest.raises(UserError, match=r"layer '0' \(Odd\) normalises in a way of its own"):
        Network(nn.Sequential(Odd(3)))({}, images())


def test_a_norm_without_stored_statistics_goes_on_using_the_batchs():
    module, x = scattered(nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten())), images()
    network = Network(module)
    assert network.norms == ()
    assert network.affine == ("0.weight", "0.bias")
    torch.testing.assert_close(network({}, x).logits, module.eval()(x))


def test_a_derived_group_norm_is_lifted():
    class GroupAct(nn.GroupNorm):
        def forward(self, x):
            return F.relu(F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps))

    module, x = scattered(nn.Sequential(nn.Conv2d(3, 4, 3), GroupAct(2, 4))), images()
    network = Network(module)
    lifted = torch.func.vmap(lambda batch: network({}, batch).logits)(torch.stack([x, 2 * x]))
    torch.testing.assert_close(lifted, torch.stack([module(x), module(2 * x)]))


def test_norms_of_other_libraries_are_known_by_their_names():
    class MyRmsNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight

    assert Network(nn.Sequential(MyRmsNorm(), nn.Linear(3, 2))).affine == ("0.weight",)


OTHER_NORMS = {
    "group": lambda: nn.GroupNorm(2, 6),
    "group, no affine": lambda: nn.GroupNorm(3, 6, affine=False),
    "one group": lambda: nn.GroupNorm(1, 6),
    "layer": lambda: nn.LayerNorm([6, 5, 5]),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
    "instance, stored": lambda: nn.InstanceNorm2d(6, track_running_stats=True),
    "rms": lambda: nn.RMSNorm([6, 5, 5]),
    "response": lambda: nn.LocalResponseNorm(3),
}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", OTHER_NORMS)
def test_other_norms_give_what_torch_gives_vmapped_too(kind, order):
    module = scattered(nn.Sequential(OTHER_NORMS[kind]()))
    network, parameters = Network(module), dict(module.named_parameters())
    x = torch.randn(3 * 4, 6, 5, 5, generator=torch.Generator().manual_seed(2))
    x = x.contiguous(memory_format=order).view(3, 4, 6, 5, 5)
    target = torch.randn(4, 6, 5, 5, generator=torch.Generator().manual_seed(3))

    def loss(own, x):
        return (network(own, x).logits * target).sum()

    def plainly(own, x):
        return (torch.func.functional_call(module, own, (x,)) * target).sum()

    def both(of, x):
        return torch.func.grad_and_value(of, argnums=(0, 1))(parameters, x)

    lifted = torch.func.vmap(lambda x: both(loss, x))(x)
    alone = [both(plainly, one.contiguous()) for one in x]
    for i, ((of_own, of_x), value) in enumerate(alone):
        torch.testing.assert_close(lifted[1][i], value, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(lifted[0][1][i], of_x, atol=1e-5, rtol=1e-4)
        for name, gradient in of_own.items():
            torch.testing.assert_close(lifted[0][0][name][i], gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 7), (4, 6, 3, 4, 5)])
def test_group_norm_takes_inputs_of_any_number_of_axes(shape):
    norm, x = scattered(nn.GroupNorm(2, 6)), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(Network(norm)({}, x).logits, norm(x))


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_one_client_and_of_several_normalise_alike(affine):
    x, mean, var = torch.randn(2, 4, 3, 5, 5), torch.randn(2, 3), torch.rand(2, 3) + 0.5
    weight, bias = (torch.randn(3), torch.randn(3)) if affine else (None, None)
    together = torch.func.vmap(lambda x, m, v: batch_norm(x, m, v, weight, bias, 1e-5))(x, mean, var)
    of_one_batch = torch.func.vmap(lambda m, v: batch_norm(x[0], m, v, weight, bias, 1e-5))(mean, var)
    for i in range(2):
        with torch.no_grad():
            alone = batch_norm(x[i], mean[i], var[i], weight, bias, 1e-5)
            torch.testing.assert_close(of_one_batch[i], batch_norm(x[0], mean[i], var[i], weight, bias, 1e-5))
        torch.testing.assert_close(alone, F.batch_norm(x[i], mean[i], var[i], weight, bias))
        torch.testing.assert_close(together[i], alone)
