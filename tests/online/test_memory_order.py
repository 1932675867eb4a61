from __future__ import annotations

import pytest
import torch

from fedctta.online.memory_order import lay_like, note_strides


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (16, 8, 1, 1), (1, 8, 3, 3), (0, 3)])
def test_tensors_lie_as_they_lay(shape):
    for old in (torch.rand(shape), torch.rand(shape).transpose(0, -1), torch.rand(shape).movedim(1, -1)):
        noted = note_strides({"a": old})
        assert lay_like(torch.zeros(old.shape), old.contiguous(), noted["a"]).stride() == old.stride()


def test_gaps_and_repetition_are_not_kept():
    assert note_strides({"a": torch.rand(4, 4)[:, ::2], "b": torch.rand(3).expand(2, 3), "c": torch.rand(8)}) == {}


@pytest.mark.parametrize("strides", [None, [1], [0, 0], [-1, 1], [1000, 1]])
def test_strides_that_do_not_fit_are_left_out(strides):
    old, new = torch.zeros(3, 2).t(), torch.arange(6.0).view(2, 3)
    found = lay_like(old, new, None if strides is None else torch.tensor(strides))
    assert torch.equal(found, new)
    assert found.stride() == old.stride()
