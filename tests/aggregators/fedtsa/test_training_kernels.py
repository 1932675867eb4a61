"""Steps by a kernel are those of plain torch; noise is tested where it is drawn (`test_fused_training`)."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from fedctta.aggregators.fedtsa.training import adam_steps, step_adam

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.triton
@pytest.mark.parametrize("lr", [0.1, 0.0])
def test_a_step_of_adam_is_that_of_plain_torch(lr):
    kernels = import_module("fedctta.aggregators.fedtsa.training_kernels")
    generator = torch.Generator().manual_seed(0)
    found = [torch.rand(3, 5, 300, generator=generator).to(DEVICE), *torch.zeros(2, 3, 5, 300, device=DEVICE).unbind()]
    plain = [tensor.clone() for tensor in found]
    steps = adam_steps(5, lr, found[0])
    for epoch in range(5):
        gradient = (torch.randn(3, 5, 300, generator=generator) * 10.0 ** -(4 * epoch)).to(DEVICE)
        step_adam(plain[0], gradient, plain[1], plain[2], steps[epoch])
        kernels.step_adam(found[0], gradient, found[1], found[2], steps, torch.tensor([epoch], device=DEVICE))
        torch.testing.assert_close(found, plain, atol=1e-7, rtol=1e-5)
