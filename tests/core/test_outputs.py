"""Logits are found in whatever a model gives, and batches of any form reach it."""

from __future__ import annotations

import doctest
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedctta.core import outputs
from fedctta.core.network import Network
from fedctta.core.outputs import pick_logits
from fedctta.errors import UserError

LOGITS = torch.arange(6.0).view(2, 3)


def test_the_example_in_the_docstring():
    assert doctest.testmod(outputs) == (0, 2)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        SimpleNamespace(logits=LOGITS, loss=None),
        {"loss": torch.zeros(()), "logits": LOGITS},
        {"out": LOGITS, "aux": LOGITS + 1},
        {"scores": LOGITS, "name": "x"},
        (LOGITS, LOGITS + 1),
        [None, LOGITS],
    ],
)
def test_logits_are_found(output):
    assert pick_logits(output) is LOGITS


@pytest.mark.parametrize("output", [None, "text", {}, {"a": LOGITS, "b": LOGITS}, ("x", 3), SimpleNamespace(logits=3)])
def test_what_has_no_logits_is_told(output):
    with pytest.raises(UserError, match=r"no logits can be found .* by output="):
        pick_logits(output)


class Two(nn.Module):
    """Takes two tensors by name."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left, right):
        return {"hidden": left, "answer": self.layer(left + right)}


def test_batches_may_be_tuples_and_mappings():
    module, left, right = Two(), torch.randn(2, 4), torch.randn(2, 4)
    network = Network(module, output=lambda output: output["answer"])
    expected = module(left, right)["answer"]
    torch.testing.assert_close(network({}, (left, right)).logits, expected)
    torch.testing.assert_close(network({}, {"right": right, "left": left}).logits, expected)
