"""Model objects changed in place do what the adapters do, so that the ways of a benchmark do the same work."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.bench.plain_clients import norms
from fedctta.bench.ways import CLIENTS
from fedctta.core.network import Network
from fedctta.models import build

NAMES = {"bbn": lambda name: name.replace(".norm.", ".")}


@pytest.fixture(scope="module")
def source():
    """A small ResNet whose BatchNorm layers are not those of a fresh one."""
    model = build("resnet8-w16").eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if "running" in name:
            tensor += 0.3 * torch.rand(tensor.shape, generator=generator)
    return model


@pytest.mark.parametrize("name", CLIENTS)
def test_a_plain_client_adapts_and_predicts_as_the_adapter(name, source):
    images = torch.rand(2, 6, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    network, adapter = Network(source), adapters.create(name)
    mine, theirs = CLIENTS[name](source), adapter.init(network)
    if "key" in theirs.private:
        theirs.private["key"] += 1  # the view a plain client draws first
    mine.adapt(images[0])
    theirs = adapter.adapt(network, theirs, images[0])
    if name == "bn":
        bias_variances(mine.model, images[0])
    rename = NAMES.get(name, lambda key: key)
    sent = {rename(key): tensor for key, tensor in mine.upload().items()}
    assert sent.keys() == theirs.own.keys()
    for key, tensor in sent.items():
        torch.testing.assert_close(tensor, theirs.own[key], rtol=1e-4, atol=1e-5)
    logits = adapter.predict(network, theirs, images[1])
    torch.testing.assert_close(mine.predict(images[1]), logits, rtol=1e-3, atol=1e-3)


def bias_variances(model, x):
    """Turn the unbiased variances that torch keeps into the biased ones of the adapter bn."""

    def correct(layer, inputs):
        count = inputs[0].numel() / inputs[0].shape[1]
        layer.running_var *= (count - 1) / count

    hooks = [layer.register_forward_pre_hook(correct) for layer in norms(model)]
    with torch.no_grad():
        model.eval()(x)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", CLIENTS)
def test_adapting_changes_what_travels_and_nothing_else_of_the_source(name, source):
    before = {key: tensor.clone() for key, tensor in source.state_dict().items()}
    client = CLIENTS[name](source, published=True)
    start = {key: tensor.clone() for key, tensor in client.upload().items()}
    client.adapt(torch.rand(4, 3, 32, 32))
    changed = [key for key, tensor in client.upload().items() if not torch.equal(tensor, start[key])]
    assert changed
    assert all(torch.equal(tensor, before[key]) for key, tensor in source.state_dict().items())


def test_published_gradient_steps_use_adam_and_pseudo_labels(source):
    ours, published = CLIENTS["grad"](source), CLIENTS["grad"](source, published=True)
    assert isinstance(ours.optimiser, torch.optim.SGD)
    assert isinstance(published.optimiser, torch.optim.Adam)
    assert ours.loss is not published.loss
