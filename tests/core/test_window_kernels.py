"""What output pixels see, laid out by a kernel, is what plain torch lays out."""

from __future__ import annotations

import pytest
import torch

from fedctta.core import gpu_kernels
from fedctta.core.convolution import Form, _add_up, _see

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SMALL = [
    ((2, 2, 3, 12, 12), 7, Form((2, 2), (3, 3), (1, 1), 1)),
    ((2, 3, 20, 5, 6), 3, Form((1, 1), (1, 1), (1, 1), 1)),
    ((2, 2, 64, 4, 4), 3, Form((2, 2), (1, 1), (1, 1), 1)),
    ((2, 2, 5, 9, 8), 3, Form((1, 2), (2, 1), (2, 1), 1)),
    ((2, 2, 36, 5, 5), 1, Form((2, 2), (0, 0), (1, 1), 1)),
]
LARGE = [  # minutes without a GPU
    ((3, 2, 3, 32, 32), 7, Form((2, 2), (3, 3), (1, 1), 1)),
    ((20, 10, 64, 8, 8), 3, Form((2, 2), (1, 1), (1, 1), 1)),
]
FORMS = [pytest.param(*form, marks=pytest.mark.triton) for form in SMALL] + [
    pytest.param(*form, marks=pytest.mark.gpu) for form in LARGE
]


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize(("shape", "side", "form"), FORMS)
def test_windows_and_their_sums_are_plain_torchs(shape, side, form, common, monkeypatch):
    n, b, c, h, w = shape
    generator = torch.Generator().manual_seed(0)
    if common:
        x = torch.randn(b, h, w, n, c, generator=generator).permute(3, 0, 4, 1, 2).to(DEVICE)
    else:
        x = torch.randn(n, b, h, w, c, generator=generator).permute(0, 1, 4, 2, 3).to(DEVICE)
    kernel = torch.empty(n, 8, c, side, side, device=DEVICE)
    seen = _see(x, kernel, form)
    gradient = torch.randn(seen.shape, generator=generator).to(DEVICE)
    total = _add_up(gradient, x, kernel, form)
    monkeypatch.setattr(gpu_kernels, "has_kernels", lambda: False)
    assert torch.equal(seen, _see(x, kernel, form))
    torch.testing.assert_close(total, _add_up(gradient, x, kernel, form))
