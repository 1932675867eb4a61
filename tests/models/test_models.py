"""Every architecture against the table of facts, and as a pure function of its tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from fedctta.errors import UserError
from fedctta.models import ARCHITECTURES, build, size_option

# name: parameters for 10 and for 100 classes, BatchNorm layers, BatchNorm channels, feature width
FACTS = {
    "resnet8": (1_235_274, 1_258_404, 9, 1_344, 256),
    "resnet8-w16": (79_962, 85_812, 9, 336, 64),
    "resnet18": (11_173_962, 11_220_132, 20, 4_800, 512),
    "wrn-28-10": (36_479_194, 36_536_884, 25, 8_976, 640),
    "wrn-40-2": (2_243_546, 2_255_156, 37, 2_704, 128),
    "resnext29": (6_807_882, 6_900_132, 31, 12_608, 1_024),
    "resnext29-raw": (6_807_882, 6_900_132, 31, 12_608, 1_024),
    "efficientnet-lite0": (3_383_818, 3_499_108, 49, 21_008, 1_280),
    "vit-tiny": (2_852_554, 2_869_924, 0, 0, 192),
    "vit-w48": (127_810, 132_220, 0, 0, 48),
    "convnext-atto": (3_332_130, 3_361_020, 0, 0, 320),
    "conv1d": (33_430, 39_280, 4, 166, 64),
    "unet": (118_746, 120_276, 10, 320, 16),
    "segformer": (243_082, 247_492, 0, 0, 48),
}
DENSE = ("unet", "segformer")
SERIES = (6, 100)
BIG = ("wrn-28-10",)
ALL = [pytest.param(name, marks=[pytest.mark.slow] if name in BIG else []) for name in FACTS]


def skeleton(name: str, classes: int) -> nn.Module:
    """Build without memory or random numbers: enough to count."""
    with torch.device("meta"):
        return ARCHITECTURES[name].make(classes=classes)


def test_every_architecture_has_facts():
    assert set(FACTS) == set(ARCHITECTURES)
    assert [name for name, architecture in ARCHITECTURES.items() if architecture.dense] == list(DENSE)


@pytest.mark.parametrize("name", FACTS)
def test_counts(name):
    ten, hundred, layers, channels, features = FACTS[name]
    for classes, count in ((10, ten), (100, hundred)):
        assert sum(p.numel() for p in skeleton(name, classes).parameters()) == count
    assert ARCHITECTURES[name].parameters == ten
    modules = list(skeleton(name, 10).modules())
    norms = [m for m in modules if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert (len(norms), sum(m.num_features for m in norms)) == (layers, channels)
    assert {(m.eps, m.momentum) for m in norms} <= {(1e-3 if name.startswith("efficientnet") else 1e-5, 0.1)}
    linear = [m.in_features for m in modules if isinstance(m, nn.Linear)]
    assert linear[-1] == features
    assert len(linear) == 1 or layers == 0
    assert not any(m.inplace for m in modules if isinstance(m, nn.ReLU))


@pytest.mark.parametrize("name", ALL)
def test_forward(name):
    module = build(name, classes=7).eval()
    x = torch.rand(2, *(SERIES if name == "conv1d" else (3, 32, 32)))
    before = x.clone()
    features: list[torch.Tensor] = []
    head = [m for m in module.modules() if isinstance(m, nn.Linear)][-1]
    head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    logits = module(x)
    assert logits.shape == ((2, 7, 32, 32) if name in DENSE else (2, 7))
    assert features[0].shape == ((2, 32, 32, FACTS[name][4]) if name in DENSE else (2, FACTS[name][4]))
    assert torch.equal(x, before)
    last = x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.mT.contiguous().mT
    torch.testing.assert_close(module(last), logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_vmap_over_clients_equals_a_loop(name):
    clients = [build(name, seed=seed).eval() for seed in (0, 1)]
    x = torch.rand(2, 2, *(SERIES if name == "conv1d" else (3, 32, 32)))
    params, buffers = stack_module_state(clients)
    lifted = vmap(lambda p, b, xs: functional_call(clients[0], (p, b), (xs,)))(params, buffers, x)
    looped = torch.stack([client(batch) for client, batch in zip(clients, x, strict=True)])
    assert not torch.allclose(looped[0], looped[1])
    torch.testing.assert_close(lifted, looped, rtol=1e-3, atol=1e-4)


def test_only_some_are_made_for_a_size():
    assert [name for name in ARCHITECTURES if size_option(name, 64)] == ["vit-tiny", "vit-w48"]
    assert size_option("vit-tiny", 64) == {"side": 64}
    assert size_option("resnet9", 64) == {}


@pytest.mark.parametrize(("name", "most"), [("vit-tiny", 3_000_000), ("convnext-atto", 4_000_000)])
def test_models_with_layer_norm_are_small_for_larger_images_too(name, most):
    with torch.device("meta"):
        module = ARCHITECTURES[name].make(classes=200, **size_option(name, 64))
    assert sum(p.numel() for p in module.parameters()) <= most


def test_the_seed_decides_the_weights_and_nothing_else_changes():
    state = torch.get_rng_state()
    one, same, other = (build("resnet8-w16", seed=seed).head.weight for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet9", {}, "unknown model 'resnet9': did you mean .*resnet8"),
        ("resnext29", {"normalize": False}, "did you mean normalise"),
        ("resnet8", {"classes": 1}, "at least 2 classes"),
    ],
)
def test_wrong_requests_are_explained(name, options, message):
    with pytest.raises(UserError, match=message):
        build(name, **options)
