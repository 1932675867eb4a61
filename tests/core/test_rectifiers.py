"""ReLUs that follow a BatchNorm layer are applied with it."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.books.blending import Blend, normalise_with
from fedctta.books.rows import read_scale
from fedctta.core import network as networks
from fedctta.core.network import Network
from fedctta.core.norms import refreshed, stored
from fedctta.core.rectifiers import OtherPass, Rectifiers, read_top


class Rectified(nn.BatchNorm2d):
    """A layer that rectifies what it has normalised, as in some libraries."""

    def forward(self, x):
        return F.relu(super().forward(x))


class Model(nn.Module):
    """Layers that are followed by all kinds of things."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.fourth, self.fifth = (nn.BatchNorm2d(3) for _ in range(5))
        self.both = Rectified(3)
        self.in_place, self.six = nn.ReLU(inplace=True), nn.ReLU6()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        a = self.in_place(self.first(x))
        b = self.six(self.second(a)) + a
        c = self.third(b)
        c = F.relu(c) + c  # it is used once more
        d = F.hardtanh(self.fourth(c))
        e = self.fifth(F.relu6(self.fifth(d)))  # called twice, and rectified once
        f = self.both(x) - e
        return self.head(f.mean((2, 3)))


def run(network, x, monkeypatch, fused):
    monkeypatch.setattr(networks, "can_fuse", lambda *_: fused)
    scale = read_scale(network)
    rule = normalise_with(scale, Blend(torch.zeros(2 * len(scale.mean)), torch.tensor(0.5)))
    with torch.no_grad():
        return torch.func.vmap(lambda x: network({}, x, rule).logits)(x)


def test_rectifiers_are_left_out_where_the_layer_has_done_their_work(monkeypatch):
    torch.manual_seed(0)
    network = Network(Model().eval())
    x = 3 * torch.randn(2, 4, 3, 5, 5)
    expected = run(network, x, monkeypatch, False)
    for _ in range(2):  # watched, and with what was seen
        torch.testing.assert_close(run(network, x, monkeypatch, True), expected, atol=1e-5, rtol=1e-5)
    assert network._tops == {(torch.Size([4, 3, 5, 5]),): {"first": inf, "second": 6.0, "both": inf}}


@pytest.mark.parametrize("rule", [stored, refreshed()])
def test_so_they_are_by_any_rule_and_with_a_gradient(rule, monkeypatch):
    torch.manual_seed(0)
    network = Network(Model().eval())
    own = {name: torch.rand(2, 3) + 0.5 for name in (*network.affine, *network.statistics)}
    x = 3 * torch.randn(2, 4, 3, 5, 5)

    def loss(own, x):
        return network(own, x, rule).logits.square().mean()

    def slopes(fused):
        monkeypatch.setattr(networks, "can_fuse", lambda *_: fused)
        return torch.func.vmap(torch.func.grad_and_value(loss))(own, x)

    expected = slopes(False)
    for _ in range(2):
        torch.testing.assert_close(slopes(True), expected, atol=1e-5, rtol=1e-4)
    assert network._tops == {(torch.Size([4, 3, 5, 5]),): {"first": inf, "second": 6.0, "both": inf}}


def test_a_model_that_does_something_else_in_another_pass_is_run_without(monkeypatch):
    class Fickle(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.rectifies = nn.BatchNorm2d(3), True

        def forward(self, x):
            y = self.norm(x)
            return (F.relu(y) if self.rectifies else y.sin()).mean((2, 3))

    monkeypatch.setattr(networks, "can_fuse", lambda *_: True)
    network, x = Network(Fickle().eval()), torch.randn(4, 3, 5, 5)
    assert torch.equal(network({}, x).logits, network({}, x).logits)
    assert network._tops == {(x.shape,): {"norm": inf}}
    network.module.rectifies = False
    found = network({}, x)
    torch.testing.assert_close(found.logits, x.sin().mean((2, 3)), atol=1e-4, rtol=1e-4)
    assert network._tops == {(x.shape,): {}}


def test_what_the_layer_has_done_is_returned_as_it_is():
    x = torch.randn(5)
    with Rectifiers({"layer": 6.0}) as rectifiers:
        rectifiers.note("layer", x)
        assert F.relu6(x) is x
        assert F.relu(x) is not x  # from now on it is like any other
        assert F.relu6(x + 1) is not x


@pytest.mark.parametrize("use", [F.relu, torch.sin, lambda x: torch.cat([torch.ones(1), x])])
def test_a_pass_that_uses_it_otherwise_ends(use):
    x = torch.randn(5)
    with Rectifiers({"layer": 6.0}) as rectifiers, pytest.raises(OtherPass):
        use(rectifiers.note("layer", x))


def test_what_a_pass_returns_is_not_rectified():
    x = torch.randn(5)
    with Rectifiers() as rectifiers:
        rectifiers.note("layer", x)
        y = F.relu(x)
    assert rectifiers.find({"logits": y}) == {"layer": inf}
    assert rectifiers.find({"logits": y, "features": [x]}) == {}


@pytest.mark.parametrize(
    ("function", "arguments", "named", "top"),
    [
        (F.relu, (), {"inplace": True}, inf),
        (torch.relu, (), {}, inf),
        (F.hardtanh, (0, 4), {}, 4.0),
        (F.hardtanh, (), {"min_val": 0.0, "max_val": 2.0}, 2.0),
        (F.hardtanh, (), {}, None),
        (torch.sigmoid, (), {}, None),
    ],
)
def test_it_is_read_up_to_where_a_function_lets_numbers_pass(function, arguments, named, top):
    assert read_top(function, (torch.zeros(1), *arguments), named) == top
