from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.models.convnext import LAYER_SCALE, Block, ConvNeXt


def small() -> ConvNeXt:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ConvNeXt(3, widths=(8, 16, 24), depths=(1, 1, 2)).eval()


def test_layer_norm_is_the_only_normalisation():
    network, norms = Network(small()), sum(isinstance(m, nn.LayerNorm) for m in small().modules())
    assert (network.norms, network.classifier, norms) == ((), "head", 8)
    assert len(network.affine) == 2 * norms  # layer scales follow no normalisation
    assert network.last_stage == ("stages.2.", "norm.")


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (64, 48)])
def test_images_of_many_sizes_are_read(height, width):
    assert small()(torch.rand(2, 3, height, width)).shape == (2, 3)


def test_images_too_small():
    with pytest.raises(UserError, match="7 x 32: enlarge them to 8"):
        small()(torch.rand(1, 3, 7, 32))


def test_a_block_adds_a_scaled_branch():
    block, x = Block(8, kernel=5), torch.randn(2, 6, 6, 8)
    branch = block.narrow(nn.functional.gelu(block.widen(block.norm(block.depthwise(x.movedim(-1, 1)).movedim(1, -1)))))
    torch.testing.assert_close(block(x), x + LAYER_SCALE * branch)
    nn.init.zeros_(block.scale)
    assert torch.equal(block(x), x)


def test_every_stage_but_the_first_halves_the_image():
    x, sizes = torch.rand(1, 16, 16, 8), []
    for stage in small().stages:
        x = stage(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(16, 16, 8), (8, 8, 16), (4, 4, 24)]
