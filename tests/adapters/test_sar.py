"""SAR against a plain version with boolean indexing."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from fedctta.adapters.sar import SAR
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models import ARCHITECTURES, build

LIMIT = 0.6


@pytest.fixture
def tiny_module(tiny_module):
    """The tiny model with a head eight times as sure, so that some predictions are reliable and some are not."""
    with torch.no_grad():
        tiny_module[5].weight *= 8
    return tiny_module


def batches(count=4, size=8):
    return torch.rand(count, size, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


def plain(module, xs, recover):
    model = copy.deepcopy(module).train()
    norm, running, resets = model[1], None, 0
    optimiser = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.9)
    limit = LIMIT * math.log(3)
    for x in xs:
        first = entropy(model(x))
        keep = first < limit
        if not keep.any():
            continue
        slopes = torch.autograd.grad(first[keep].mean(), list(norm.parameters()))
        length = torch.stack([s.square().sum() for s in slopes]).sum().sqrt()
        start = [p.detach().clone() for p in norm.parameters()]
        with torch.no_grad():
            for p, s in zip(norm.parameters(), slopes, strict=True):
                p += 0.05 * s / length
        second = entropy(model(x))
        keep = keep & (second < limit)
        if keep.any():
            loss = second[keep].mean()
            optimiser.zero_grad()
            loss.backward()
        with torch.no_grad():
            for p, s in zip(norm.parameters(), start, strict=True):
                p.copy_(s)
        if not keep.any():
            continue
        optimiser.step()
        value = loss.item()
        running = value if running is None else 0.9 * running + 0.1 * value
        if running < recover:
            model = copy.deepcopy(module).train()
            norm, running, resets = model[1], None, resets + 1
            optimiser = torch.optim.SGD(norm.parameters(), lr=0.1, momentum=0.9)
    return norm.weight.detach(), norm.bias.detach(), resets


def play(adapter, network, xs):
    client = adapter.init(network)
    for x in xs:
        client = adapter.adapt(network, client, x)
    return client


def test_steps_equal_the_plain_version(tiny_module):
    weight, bias, resets = plain(tiny_module, batches(), recover=0.0)
    assert resets == 0
    client = play(SAR(lr=0.1, threshold=LIMIT, recover=0.0), Network(tiny_module), batches())
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_a_collapse_brings_the_source_back(tiny_module):
    recover = 1.0  # nearly any entropy counts as a collapse
    weight, bias, resets = plain(tiny_module, batches(), recover)
    assert resets > 0
    client = play(SAR(lr=0.1, threshold=LIMIT, recover=recover), Network(tiny_module), batches())
    torch.testing.assert_close(client.own["1.weight"], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(client.own["1.bias"], bias, rtol=1e-4, atol=1e-6)


def test_nothing_reliable_changes_nothing(tiny_network):
    adapter = SAR(threshold=0.0)
    before = adapter.init(tiny_network)
    after = adapter.adapt(tiny_network, before, batches()[0])
    assert all(torch.equal(before.own[n], after.own[n]) for n in before.own)
    assert all(torch.equal(before.private[n], after.private[n]) for n in before.private)


def test_a_batch_without_reliable_images_holds_the_velocity(tiny_module):
    network, adapter = Network(tiny_module), SAR(lr=0.1, threshold=LIMIT, recover=0.0)
    moving = play(adapter, network, batches(1))
    assert any(t.abs().max() > 1e-3 for n, t in moving.private.items() if n.startswith("velocity."))
    after = SAR(lr=0.1, threshold=0.0, recover=0.0).adapt(network, moving, batches(2)[1])
    assert all(torch.equal(moving.own[n], after.own[n]) for n in moving.own)
    assert all(torch.equal(moving.private[n], after.private[n]) for n in moving.private)


def test_recovery_forgets_the_velocity_and_the_running_entropy(tiny_module):
    network = Network(tiny_module)
    moving = play(SAR(lr=0.1, threshold=LIMIT, recover=0.0), network, batches(2))
    back = SAR(lr=0.1, threshold=LIMIT, recover=10.0).adapt(network, moving, batches(3)[2])
    fresh = SAR().init(network)
    assert any((moving.private[n] != t).any() for n, t in fresh.private.items())
    assert all(torch.equal(back.own[n], t) for n, t in fresh.own.items())
    assert all(torch.equal(back.private[n], t) for n, t in fresh.private.items())


LAST = {
    "resnet8": ("blocks.2.",),
    "resnet18": ("blocks.6.", "blocks.7."),
    "wrn-40-2": (*(f"blocks.{k}." for k in range(12, 18)), "bn."),
    "resnext29": ("blocks.6.", "blocks.7.", "blocks.8."),
    "efficientnet-lite0": ("_blocks.15.", "_conv_head.", "_bn1."),
    "unet": ("up_top.",),
    "segformer": ("stages.2.", "norm."),
}


@pytest.mark.parametrize("model", LAST)
def test_the_last_stage_of_our_own_models_is_left_out(model):
    network = Network(build(model), dense=ARCHITECTURES[model].dense)
    trained = SAR().init(network).own.keys()
    assert trained == {name for name in network.affine if not name.startswith(LAST[model])}
    assert 0 < len(trained) < len(network.affine)
    assert SAR(skip="none").init(network).own.keys() == set(network.affine)
    assert SAR().init(Network(nn.Sequential(build(model)))).own.keys() == {f"0.{name}" for name in trained}


class Named(nn.Module):
    """Normalisation layers of these names, dots and all."""

    def __init__(self, *names):
        super().__init__()
        for name in names:
            *path, last = name.split(".")
            place = self
            for part in path:
                if part not in dict(place.named_children()):
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.add_module(last, nn.LayerNorm(2))


def trained(*names, skip="auto"):
    """Return the layers among these that SAR trains."""
    return {name.rpartition(".")[0] for name in SAR(skip=skip).init(Network(Named(*names))).own}


def test_the_last_stage_of_other_models_is_told_by_name():
    assert trained("bn1", "layer3.0.bn1", "layer4.0.bn1", "layer4.1.bn2") == {"bn1", "layer3.0.bn1"}
    assert trained("backbone.layer3.0.bn1", "backbone.layer4.0.bn1") == {"backbone.layer3.0.bn1"}
    for prefix, depth, last in (("", 12, 9), ("model.", 12, 9), ("", 24, 18)):
        blocks = [f"{prefix}blocks.{k}.norm{i}" for k in range(depth) for i in (1, 2)]
        early = {name for name in blocks if int(name.removeprefix(prefix).split(".")[1]) < last}
        found = trained(f"{prefix}patch_embed.norm", *blocks, f"{prefix}norm")
        assert found == {f"{prefix}patch_embed.norm", *early}
    assert trained("first", "norm") == {"first", "norm"}, "names that tell nothing"
    assert trained("first", "second", skip="sec") == {"first"}


def test_layers_can_be_left_out(tiny_network):
    assert SAR(skip="1.").init(tiny_network).own == {}
    with pytest.raises(UserError, match=r"sar.skip=1. leaves out every"):
        SAR(skip="1.").check(tiny_network, 8)
    with pytest.raises(UserError, match=r"sar.skip=layer4 is in no name"):
        SAR(skip="layer4").check(tiny_network, 8)
    SAR().check(tiny_network, 8)
    SAR(skip="none").check(tiny_network, 8)
