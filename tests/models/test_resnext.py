from __future__ import annotations

import torch

from fedctta.models.resnext import Bottleneck, ResNeXt29


def test_bottleneck_widths():
    block = Bottleneck(64, 128, stride=2)
    assert block.grouped.weight.shape == (256, 64, 3, 3)
    assert block.grouped.groups == 4
    assert block.eval()(torch.rand(1, 64, 8, 8)).shape == (1, 512, 4, 4)


def test_the_papers_way_leaves_the_input_raw():
    proper = ResNeXt29().eval()
    papers = ResNeXt29(normalise=False).eval()
    papers.load_state_dict(proper.state_dict())
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(papers(2 * x - 1), proper(x), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(papers(x), proper(x), rtol=1e-3, atol=1e-4)
