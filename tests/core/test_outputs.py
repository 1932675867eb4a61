"""Logits are found in whatever a model gives, and batches of any form reach it."""

from __future__ import annotations

import doctest
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedctta.core import outputs
from fedctta.core.network import Network
from fedctta.core.outputs import count_rows, pick_logits, split_rows
from fedctta.errors import UserError

LOGITS = torch.arange(6.0).view(2, 3)


def test_the_example_in_the_docstring():
    assert doctest.testmod(outputs) == (0, 4)


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


def test_rows_of_a_batch_are_counted_and_split():
    batch = {"ids": torch.arange(10).view(5, 2), "age": torch.arange(5.0)}
    assert count_rows(batch) == count_rows(tuple(batch.values())) == count_rows(batch["ids"]) == 5
    first, second, third = split_rows(batch, 2)
    assert third["ids"].tolist() == [[8, 9]]
    assert torch.equal(torch.cat([part["age"] for part in (first, second, third)]), batch["age"])


class Words(nn.Module):
    """Ends in a linear layer for every word, whose outputs are averaged."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).mean(1)


def test_a_classifier_of_words_gives_no_features_of_images():
    network = Network(Words())
    assert network.has_features
    output = network({}, torch.randn(2, 5, 4))
    assert not network.has_features
    assert output.features is output.logits
