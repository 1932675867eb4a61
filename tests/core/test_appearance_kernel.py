"""A kernel sees in images what plain torch sees."""

from __future__ import annotations

import pytest
import torch

from fedctta.core import appearance as plain
from fedctta.core.appearance import appearance

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
@pytest.mark.parametrize(
    "shape", [(3, 4, 3, 40, 36), (1, 2, 3, 150, 120), (2, 2, 3, 5, 7), (1, 2, 1, 8, 8), (2, 1, 2, 1, 4)]
)
def test_a_kernel_sees_what_plain_torch_sees(shape, monkeypatch):
    n, b, c, h, w = shape
    x = torch.rand(n, b, h, w, c, generator=torch.Generator().manual_seed(0)).permute(0, 1, 4, 2, 3).to(DEVICE)
    x[0, 0, :, :3] = 0.5
    monkeypatch.setattr(plain, "can_fuse", lambda x: True)
    with torch.no_grad():
        found, alone = torch.func.vmap(appearance)(x), appearance(x[0])
        monkeypatch.setattr(plain, "can_fuse", lambda x: False)
        expected = torch.func.vmap(appearance)(x)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(alone, expected[0], atol=1e-4, rtol=1e-4)
