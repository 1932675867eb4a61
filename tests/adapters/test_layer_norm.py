"""Every adapter on models of this package without BatchNorm: vmapped it equals a loop, or one line says why not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.clients import by_loop, by_vmap, stack
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.machine import arithmetic
from fedctta.models.convnext import ConvNeXt
from fedctta.models.vit import ViT

SIDE, CLIENTS, ROUNDS, BATCH = 16, 2, 2, 4
MODELS = {
    "vit": partial(ViT, width=16, depth=2, heads=2, grid=4, side=SIDE),
    "convnext": partial(ConvNeXt, widths=(8, 16), depths=(1, 1)),
}
NEEDS_BATCHNORM = {"bn", "recall", "norm-alpha", "norm-ema", "dua", "rotta", "bbn"}
SURE = 5  # times the logits, for methods that leave out images
PARAMETERS = {
    "grad": {"lr": 1e-3},
    "cotta": {"views": 2, "lr": 1e-5},  # Adam's first steps are signs, and rounding decides those of zero gradients
    "memo": {"views": 2},
    "atp": {"rates": "0.01"},
    "fedthe": {"views": 2, "plus": 1},
    "fedicon": {"steps": 2},
    "bpa": {"steps": 2},
    "cola": {"vectors": 2, "threshold": 0.0},
}
INNER = [("recall", {"inner": inner, "lr": 0.01}) for inner in ("tent", "eata", "sar")]
FORMS = [(name, PARAMETERS.get(name, {})) for name in adapters.classes() if name not in NEEDS_BATCHNORM]
FORMS += [*INNER, ("cola", {"role": "mixed"}), ("cola", {"base": "sar"})]
gpu = pytest.param("cuda", marks=pytest.mark.gpu)


def make_network(name, device="cpu"):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = MODELS[name](3)
    with torch.no_grad():
        module.head.weight *= SURE
    return Network(module, device)


def batches(device):
    generator = torch.Generator().manual_seed(3)
    return torch.rand(ROUNDS, CLIENTS, BATCH, 3, SIDE, SIDE, generator=generator).to(device)


def play(adapter, network, lift):
    """Adapt and predict for a few rounds; return the logits[T, N, B, K]."""
    clients, logits = stack(adapter.init(network), CLIENTS), []
    with torch.no_grad(), arithmetic():
        for batch in batches(network.device):
            clients = lift(partial(adapter.adapt, network))(clients, batch)
            clients = lift(partial(adapter.receive, network))(clients, batch)
            logits.append(lift(partial(adapter.predict, network))(clients, batch))
    return torch.stack(logits)


@pytest.mark.parametrize("device", ["cpu", gpu])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("name", "parameters"), FORMS)
def test_vmapped_equals_looped(name, parameters, model, device):
    network, adapter = make_network(model, device), adapters.create(name, parameters)
    adapter.check(network, BATCH)
    lifted, looped = (play(adapter, network, lift) for lift in (by_vmap, by_loop))
    assert lifted.isfinite().all()
    assert (lifted - looped).abs().max() < 1e-4
    with torch.no_grad(), arithmetic():
        source = network({}, batches(network.device).flatten(0, 2)).logits.view_as(lifted)
    assert torch.allclose(lifted, source, rtol=0, atol=1e-5) == (name == "none")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", sorted(NEEDS_BATCHNORM))
def test_statistics_that_are_not_there_are_refused(name, model):
    with pytest.raises(UserError, match=f"adapter '{name}' needs BatchNorm layers and this model has none: use"):
        adapters.create(name, {}).check(make_network(model), BATCH)
