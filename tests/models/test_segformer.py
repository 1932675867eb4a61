from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.segformer import Attention, Block, enlarge


def test_layer_norm_is_the_only_normalisation():
    network = Network(build("segformer", 3))
    assert network.norms == ()
    assert len(network.affine) == 2 * sum(isinstance(m, nn.LayerNorm) for m in build("segformer").modules())
    assert network.classifier == "head"


@pytest.mark.parametrize(("height", "width"), [(16, 16), (17, 30), (48, 64)])
def test_every_pixel_gets_logits(height, width):
    assert build("segformer", 3).eval()(torch.rand(2, 3, height, width)).shape == (2, 3, height, width)


def test_images_too_small():
    with pytest.raises(UserError, match="15 x 32: enlarge them to 16"):
        build("segformer", 3)(torch.rand(1, 3, 15, 32))


@pytest.mark.parametrize("size", [(6, 10), (9, 7), (3, 4)])
def test_enlarging_is_bilinear_interpolation(size):
    x = torch.rand(2, 3, 5, 4)
    wanted = F.interpolate(x.movedim(-1, 1), size=size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(enlarge(x, *size).movedim(-1, 1), wanted)


@pytest.mark.parametrize("reduction", [1, 2])
def test_attention_agrees_with_torch(reduction):
    torch.manual_seed(0)
    layer = Attention(8, heads=2, reduction=reduction)
    x = torch.randn(3, 4, 6, 8)
    small = x
    if layer.shrink is not None:
        small = layer.norm(layer.shrink(x.movedim(-1, 1)).movedim(1, -1))
    flat, few = x.reshape(3, 24, 8), small.reshape(3, -1, 8)
    weights = [layer.query.weight, layer.key.weight, layer.value.weight]
    biases = torch.cat([layer.query.bias, layer.key.bias, layer.value.bias])
    wanted, _ = F.multi_head_attention_forward(
        *(each.movedim(1, 0) for each in (flat, few, few)), 8, 2, torch.cat(weights), biases, None, None, False, 0.0,
        layer.out.weight, layer.out.bias,
    )  # fmt: skip
    torch.testing.assert_close(layer(x), wanted.movedim(0, 1).reshape(x.shape), rtol=1e-4, atol=1e-5)


def test_a_block_adds_to_its_input():
    block = Block(8, heads=2, reduction=2, growth=2)
    for layer in (block.attention.out, block.narrow):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    x = torch.randn(1, 4, 4, 8)
    assert torch.equal(block(x), x)


def test_pixels_far_apart_reach_one_another():
    network = build("segformer", 3).eval()
    x = torch.rand(1, 3, 32, 32)
    y = x.clone()
    y[..., 0, 0] = 1 - y[..., 0, 0]
    assert (network(x) - network(y))[..., 31, 31].abs().max() > 0


def test_the_decoder_hears_every_stage():
    network = build("segformer", 3).eval()
    x = torch.rand(1, 3, 32, 32)
    before = network(x)
    for gather in network.gather:
        kept = gather.weight.detach().clone()
        nn.init.zeros_(gather.weight)
        assert not torch.allclose(network(x), before)
        gather.weight.data.copy_(kept)
