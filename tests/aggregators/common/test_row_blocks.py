"""Mixing by columns: the same as mixing at once, where the uploads are, or rounded to what they were stored in."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.common import row_blocks
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import mix
from fedctta.aggregators.common.neighbours import Neighbours
from fedctta.aggregators.common.row_blocks import mix_blocks
from fedctta.core.randomness import keys
from fedctta.core.storage import Storage, widen

CLIENTS = 5
DENSE = torch.rand(CLIENTS, CLIENTS, generator=torch.Generator().manual_seed(1)).softmax(1)
WEIGHTS = {
    "dense": DENSE,
    "neighbours": Neighbours(torch.tensor([[i, (i + 1) % CLIENTS] for i in range(CLIENTS)]), torch.full((5, 2), 0.5)),
    "groups": Groups(torch.ones(CLIENTS, 1), torch.full((1, CLIENTS), 1 / CLIENTS), torch.zeros(CLIENTS)),
    "kin": Groups(
        torch.tensor([[1.0], [1], [0.5], [0], [1]]), torch.full((1, 5), 0.2), torch.tensor([0, 0, 0.5, 1, 0])
    ),
    "each": dict.fromkeys(("kernel", "matrix", "vector"), DENSE),
}


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    monkeypatch.setattr(row_blocks, "NUMBERS_AT_ONCE", {"cpu": 7 * CLIENTS})


@pytest.fixture
def own():
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(CLIENTS, 4, 3, 2, 2, generator=generator)
    return {
        "kernel": kernel.movedim(2, -1).contiguous().movedim(-1, 2),  # channels last
        "matrix": torch.randn(CLIENTS, 6, 5, generator=generator),
        "vector": torch.randn(CLIENTS, 9, generator=generator),
    }


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_mixtures_take_the_place_of_uploads(weights, own):
    expected = mix(weights, own)
    expected = {name: tensor.clone() for name, tensor in expected.items()}
    mixed = mix_blocks(weights, own, in_place=True)
    torch.testing.assert_close(mixed, expected)
    assert list(mixed) == list(own)
    for name in ("kernel", "matrix"):
        alike = weights is WEIGHTS["groups"]  # one row, which all receive
        assert (mixed[name].data_ptr() == own[name].data_ptr()) is not alike
        assert (mixed[name].stride(0) == 0) is alike


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("in_place", [True, False])
def test_what_is_stored_in_bfloat16_is_mixed_in_float32(weights, in_place, own):
    storage, key = Storage(frozenset({"kernel", "matrix"})), keys(0, 1)[0]
    stored = {name: t.bfloat16() if name in storage.names else t for name, t in own.items()}
    expected = mix(weights, widen(stored))
    rounded = storage.narrow(expected, key, stacked=True)
    before = {name: tensor.clone() for name, tensor in stored.items()}
    mixed = mix_blocks(weights, stored, in_place=in_place, storage=storage, key=key)
    for name, tensor in mixed.items():
        assert tensor.dtype == stored[name].dtype
        assert tensor.stride()[1:] == own[name].stride()[1:]
        assert (tensor == rounded[name]).float().mean() > 0.99, name  # but for other sums in float32
        assert in_place or torch.equal(stored[name], before[name])
