from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.core.network import Network
from fedctta.data.catalogue import load
from fedctta.errors import UserError
from fedctta.models import build, zoo
from fedctta.models.vit import Block, ViT, count_halvings, make_patches
from fedctta.training.central import evaluate

PATH = zoo.PACKAGED / "vit-w48-shapes.safetensors"


def small(**options) -> ViT:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ViT(3, width=16, depth=4, heads=2, **options).eval()


def test_layer_norm_is_the_only_normalisation():
    network, norms = Network(small()), sum(isinstance(m, nn.LayerNorm) for m in small().modules())
    assert (network.norms, network.classifier, norms) == ((), "head", 9)
    assert len(network.affine) == 2 * norms
    assert network.last_stage == ("blocks.3.", "norm.")


@pytest.mark.parametrize(("side", "grid", "patch"), [(32, 8, 4), (64, 8, 8), (32, 4, 8), (227, 8, 32), (8, 8, 2)])
def test_patches_are_chosen_from_the_size_of_images(side, grid, patch):
    assert 2 ** count_halvings(small(side=side, grid=grid).patches) == patch


def test_earlier_convolutions_are_narrower():
    widths = [layer.out_channels for layer in make_patches(48, 4) if isinstance(layer, nn.Conv2d)]
    assert widths == [8, 12, 24, 48]
    assert not isinstance(make_patches(48, 4)[-1], nn.GELU)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 64), (20, 33), (1, 1)])
def test_images_of_any_size_are_read(height, width):
    assert small()(torch.rand(2, 3, height, width)).shape == (2, 3)


def test_a_block_adds_to_its_input():
    block = Block(8, heads=2)
    for layer in (block.attention.out, block.narrow):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    z = torch.randn(1, 4, 4, 8)
    assert torch.equal(block(z), z)


def test_positions_tell_patches_apart():
    module, x = small(), torch.zeros(1, 3, 32, 32)
    x[..., 4:8, 4:8] = 1
    moved = x.roll((16, 16), (2, 3))  # the same patches elsewhere, away from the border
    assert not torch.allclose(module(x), module(moved), atol=1e-5)
    nn.init.zeros_(module.positions)
    torch.testing.assert_close(module(x), module(moved))


def test_the_packaged_weights_know_shapes():
    test, module = load("shapes", "test"), zoo.load_model("vit-w48", "shapes", weights=PATH)
    accuracy = evaluate(module, test.images[:400], test.labels[:400])
    assert accuracy == pytest.approx(zoo.read_card(PATH)["accuracy"], abs=0.04)
    assert PATH.stat().st_size < 300_000


def test_weights_bring_the_size_of_their_patches(tmp_path):
    path, trained = tmp_path / "w.safetensors", build("vit-w48", 7, seed=3, side=64).eval()
    zoo.save_weights(trained, path, {}, half=False)
    loaded = zoo.load_model("vit-w48", "mine", 7, path)
    x = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(loaded(x), trained(x))
    with pytest.raises(UserError, match=r"does not fit this network \(positions is \[4, 4, 48\], not \[8, 8, 192\]\)"):
        zoo.load_model("vit-tiny", "mine", 7, path)
