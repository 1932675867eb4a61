"""Variants of one model, for models that vmap can run and for those it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedctta
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


class Branching(nn.Module):
    """Asks for a value of what it computes, which vmap cannot tell it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x):
        seen = self.body[:2](x)
        return self.body[2:](seen if bool(seen.square().mean() > 0) else -seen)


@pytest.mark.parametrize(
    ("method", "parameters"),
    [("recall", {}), ("cotta", {"views": 2}), ("memo", {"views": 2}), ("fedthe", {"plus": 1, "views": 2, "images": 4})],
)
def test_methods_that_try_variants_take_models_that_vmap_cannot_run(method, parameters):
    torch.manual_seed(0)
    branching = Branching()
    if method == "fedthe":
        parameters = {**parameters, "source_images": torch.rand(4, 3, 6, 6)}
    looped, lifted = (fedctta.adapt(module, method, **parameters) for module in (branching, branching.body))
    for _ in range(2):
        x = torch.rand(4, 3, 6, 6)
        torch.testing.assert_close(looped(x), lifted(x), atol=1e-4, rtol=1e-4)
    assert not looped.adaptation.network.batches
    assert lifted.adaptation.network.batches


def test_a_run_takes_a_recurrent_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), Recurrent())
    data = fedctta.Domains(("a",), {"a": torch.rand(12, 5, 6).numpy()}, {}, ("x", "y", "z"))
    result = fedctta.run(
        dataset=data, model=model, adapter="recall", aggregator="recall", clients=2, batch=3, stream="iid"
    )
    assert result.records[-1].settings["lift"] == "loop"
