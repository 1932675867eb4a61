from __future__ import annotations

import pytest
import torch

import fedctta
from fedctta.errors import UserError


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (lambda logits: None, "output= makes a NoneType of what the model gives"),
        (lambda logits: logits > 0, r"the model gives torch\.bool for logits: say by output="),
        (lambda logits: {}["logits"], r"output= fails on what the model gives \(Tensor\): KeyError: 'logits'"),
        (lambda logits: logits.logits, "AttributeError: 'Tensor' object has no attribute 'logits'; correct it"),
    ],
)
def test_an_output_that_picks_no_logits_is_one_line(output, line, tiny_module):
    with pytest.raises(UserError, match=line) as caught:
        fedctta.adapt(tiny_module, "bn", output=output)(torch.rand(4, 3, 8, 8))
    assert "\n" not in str(caught.value)
