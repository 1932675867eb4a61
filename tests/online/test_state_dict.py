"""The state dict of a model that adapts is that of the adapted model, and brings back what is adapted."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fedctta
from fedctta.core.network import Network
from fedctta.errors import UserError


def test_the_state_dict_is_the_adapted_models_and_loads_into_the_module(tiny_module, batches):
    model = fedctta.adapt(tiny_module, "bn")
    x = batches()[0]
    logits = model(x)
    fresh = copy.deepcopy(tiny_module)
    fresh.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.allclose(fresh(x), logits, atol=1e-5)
    assert not torch.allclose(tiny_module(x), logits, atol=1e-5)
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in tiny_module.named_parameters()}
    assert torch.equal(dict(model.named_buffers())["1.running_mean"], fresh[1].running_mean)
    assert next(model.parameters()).device == torch.device("cpu")


def test_a_state_dict_brings_back_what_is_adapted_and_nothing_else(tiny_module, batches):
    model, other = (fedctta.adapt(tiny_module, "bn") for _ in range(2))
    model(batches()[0])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.client.own["1.running_mean"], model.client.own["1.running_mean"])
    foreign = {**model.state_dict(), "0.weight": torch.zeros(4, 3, 3, 3)}
    with pytest.raises(UserError, match=r"has other values for '0\.weight'"):
        other.load_state_dict(foreign)
    with pytest.raises(UserError, match="only in one"):
        other.load_state_dict({})


class Tied(nn.Module):
    """Has one matrix under two names, and one layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.again, self.a, self.b = self.norm, nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.b(self.a(self.again(self.conv(x)).relu().mean((2, 3))).relu()))


def test_a_tensor_of_two_names_is_adapted_under_both(batches):
    torch.manual_seed(0)
    module, x = Tied().eval(), batches()[0]
    model, other = (fedctta.adapt(module, "shot", lr=0.05, guard="off") for _ in range(2))
    for _ in range(3):
        model(x)
    state = model.state_dict()
    for one, two in (("a.weight", "b.weight"), ("norm.weight", "again.weight"), ("norm.bias", "again.bias")):
        assert torch.equal(state[one], state[two])
        assert not torch.equal(state[one], module.state_dict()[one])
        named = dict(model.named_parameters(remove_duplicate=False))
        assert torch.equal(named[one], named[two])
    fresh = Tied()
    fresh.load_state_dict(state)
    with torch.no_grad():
        adapted = Network(module)(model.client.own, x).logits
        torch.testing.assert_close(fresh.eval()(x), adapted)
    assert model.state_dict(prefix="inner.").keys() == {f"inner.{name}" for name in state}
    assert torch.equal(model.state_dict(prefix="inner.")["inner.b.weight"], state["a.weight"])
    other.load_state_dict(fresh.state_dict())
    assert torch.equal(other.client.own["a.weight"], state["a.weight"])
    with pytest.raises(UserError, match=r"other values for 'b\.weight' than for 'a\.weight'"):
        other.load_state_dict(state | {"b.weight": torch.zeros(8, 8)})
    with pytest.raises(UserError, match=r"other values for 'conv\.weight', which is not adapted"):
        fedctta.adapt(module, "bn").load_state_dict(module.state_dict() | {"conv.weight": torch.zeros(8, 3, 3, 3)})


@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros(4, 4), None, 1.0])
@pytest.mark.parametrize("name", ["0.weight", "1.running_mean"])
def test_a_state_dict_of_another_shape_is_refused_and_changes_nothing(name, value, tiny_module):
    model = fedctta.adapt(tiny_module, "bn")
    own = model.client.own
    with pytest.raises(UserError, match=f"another shape for {name!r} than the model: give another"):
        model.load_state_dict(model.state_dict() | {name: value})
    assert model.client.own is own
