"""However large the tiles are, kernels give the same (`test_fused_training` compares them with plain torch)."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from fedctta.aggregators.fedtsa.attention import Pairs, make_identity_block
from fedctta.aggregators.fedtsa.fused_training import learn_fused
from fedctta.aggregators.fedtsa.training import Training

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
@pytest.mark.parametrize("chunk", [16, 64])
def test_tiles_of_other_sizes_give_the_same(chunk, monkeypatch):
    kernels = import_module("fedctta.aggregators.fedtsa.attention_kernels")
    generator = torch.Generator().manual_seed(0)
    x, *noise = (torch.rand(2, *shape, generator=generator).to(DEVICE) for shape in ((3, 4, 70), (3, 4, 4), (4, 3, 3)))
    block = make_identity_block(x, True).expand(2, -1, -1).contiguous()
    known, how = torch.ones(2, 3, 4, dtype=torch.bool, device=DEVICE), Training(1, 0.1, 1.0, code=False)
    found = []
    for size in (32, chunk):
        monkeypatch.setattr(kernels, "TILINGS", {name: kernels.Tiling(size, 4) for name in kernels.TILINGS})
        found.append(learn_fused(block, x, known, Pairs(*noise), how))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)
    assert found[0][0].abs().max() > 1e-4
