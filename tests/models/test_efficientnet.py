from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models import build
from fedctta.models.efficientnet import EfficientNetLite0, InvertedResidual, conv, pad, take_features


@pytest.fixture(scope="module")
def imagenet():
    return EfficientNetLite0(1000)


def test_names_and_counts_are_those_of_the_published_file(imagenet):
    state = imagenet.state_dict()
    assert sum(p.numel() for p in imagenet.parameters()) == 4_652_008
    assert len(state) == 296
    parts = ("_expand_conv", "_depthwise_conv", "_project_conv", "_bn0", "_bn1", "_bn2")
    tops = {"_conv_stem", "_bn0", "_conv_head", "_bn1", "_fc"}
    assert {name.split(".")[0] for name in state} == {*tops, "_blocks"}
    assert {name.split(".")[2] for name in state if name.startswith("_blocks.")} == set(parts)
    assert "_blocks.0._expand_conv.weight" not in state
    assert state["_blocks.15._project_conv.weight"].shape == (320, 1152, 1, 1)
    assert {m.eps for m in imagenet.modules() if isinstance(m, nn.BatchNorm2d)} == {1e-3}


@pytest.mark.parametrize(("side", "kernel", "sides"), [(8, 3, (0, 1)), (7, 3, (1, 1)), (8, 5, (1, 2)), (7, 5, (2, 2))])
def test_strides_pad_as_tensorflow_does(side, kernel, sides):
    layer = conv(2, 3, kernel, stride=2)
    x = torch.rand(1, 2, side, side)
    torch.testing.assert_close(pad(x, layer), F.pad(x, sides * 2))
    assert layer(pad(x, layer)).shape[-1] == -(-side // 2)
    plain = conv(2, 3, kernel)
    assert pad(x, plain) is x
    assert plain(x).shape[-1] == side


@pytest.mark.parametrize(("inputs", "stride", "adds"), [(8, 1, True), (8, 2, False), (4, 1, False)])
def test_a_block_adds_its_input_where_shapes_agree(inputs, stride, adds):
    block = InvertedResidual(inputs, 8, 3, stride, 6).eval()
    nn.init.zeros_(block._bn2.weight)
    x = torch.rand(1, inputs, 6, 6)
    torch.testing.assert_close(block(x), x if adds else torch.zeros(1, 8, 6 // stride, 6 // stride))


def test_values_are_normalised_inside(imagenet):
    seen = []
    imagenet._conv_stem.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    imagenet.eval()(torch.tensor([0.0, 127 / 255, 1.0]).view(3, 1, 1, 1).expand(3, 3, 32, 32))
    assert seen[0][:, 0, 5, 5].tolist() == pytest.approx([-127 / 128, 0, 1], abs=1e-6)


def test_features_are_taken_and_the_classifier_is_not(imagenet):
    module = build("efficientnet-lite0", 7)
    before = module._fc.weight.clone()
    take_features(module, imagenet.state_dict())
    assert torch.equal(module._fc.weight, before)
    assert torch.equal(module._blocks[3]._bn1.weight, imagenet._blocks[3]._bn1.weight)
    assert torch.equal(module._conv_stem.weight, imagenet._conv_stem.weight)
    with pytest.raises(UserError, match="do not fit this model"):
        take_features(
            module, {name: tensor for name, tensor in imagenet.state_dict().items() if "_conv_head" not in name}
        )
