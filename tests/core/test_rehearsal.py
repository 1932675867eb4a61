"""Models that write into their inputs, or into buffers of their own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fedctta
from fedctta.core.network import Network
from fedctta.core.rehearsal import Rehearsal, Written


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
        self.register_buffer("seen", torch.zeros(1))


class Centring(Base):
    def forward(self, x):
        return self.body(x.sub_(0.5))


class Counting(Base):
    def forward(self, x):
        self.seen += 1
        return self.body(x) * self.seen


class Averaging(Base):
    def forward(self, x):
        self.seen = 0.5 * self.seen + 0.5 * x.mean()
        return self.body(x - self.seen)


class Tied(Counting):
    def __init__(self):
        super().__init__()
        self.again = nn.Linear(64, 3)
        self.again.weight = self.body[3].weight


@pytest.mark.parametrize("kind", [Base, Centring, Counting, Averaging, Tied])
@pytest.mark.parametrize("method", ["none", "tent", "recall", "cotta"])
def test_a_pass_leaves_batch_and_model_as_they_were(kind, method):
    if kind is Base:
        kind = type("Plain", (Base,), {"forward": lambda self, x: self.body(x)})
    torch.manual_seed(0)
    module, x = kind().eval(), torch.rand(4, 3, 6, 6)
    with torch.no_grad():
        expected = copy.deepcopy(module)(x.clone())
    given, state = x.clone(), copy.deepcopy(module.state_dict())
    model = fedctta.adapt(module, method, **({"views": 2} if method == "cotta" else {}))
    for _ in range(2):
        logits = model(given)
    if method == "none":
        torch.testing.assert_close(logits, expected)
    assert torch.equal(given, x)
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(model.state_dict()["seen"], state["seen"])
    assert model.double()(given).isfinite().all()


def test_a_run_takes_such_a_model():
    torch.manual_seed(0)
    data = fedctta.Domains(("a",), {"a": torch.rand(12, 3, 6, 6).numpy()}, {}, ("x", "y", "z"))
    for kind in (Centring, Averaging):
        fedctta.run(dataset=data, model=kind(), adapter="tent", aggregator="fedavg", clients=2, batch=3, stream="iid")


def test_what_was_written_is_added_to_what_was_written_before():
    seen = Rehearsal((torch.zeros(2), torch.zeros(2)), {"a": torch.zeros(1), "b": torch.zeros(1), "c": torch.zeros(1)})
    after = {**seen.buffers, "b": torch.zeros(1)}
    assert seen.written(after, Written(buffers=("a",))) == Written(False, ("a", "b"))
    seen.x[1].add_(1)
    assert seen.written(seen.buffers, Written()) == Written(True, ())


def test_other_models_are_not_copied():
    network = Network(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2)))
    x = torch.rand(2, 3, 3, 3)
    network.rehearse(x)
    assert network.written == Written()
    assert network.written.spare(x) is x
