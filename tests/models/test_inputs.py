from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.errors import UserError
from fedctta.models.inputs import Normalise, as_tensor, to_input


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_values_and_axes():
    raw = images(2, 4, 5, 3)
    x = to_input(raw)
    assert x.dtype == torch.float32
    assert x.shape == (2, 3, 4, 5)
    assert x[1, 2, 3, 4] == torch.tensor(raw[1, 3, 4, 2] / 255, dtype=torch.float32)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_leading_client_axis_is_kept():
    raw = images(3, 2, 4, 5, 3)
    assert torch.equal(to_input(raw)[1], to_input(raw[1]))


def test_tensors_and_arrays_agree():
    raw = images(2, 4, 4, 3)
    assert torch.equal(to_input(raw), to_input(torch.tensor(raw)))


def test_read_only_and_reversed_arrays(tmp_path, recwarn):
    raw = images(2, 4, 4, 3)
    np.save(tmp_path / "x.npy", raw)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(to_input(mapped), to_input(raw))
    assert torch.equal(to_input(raw[:, :, ::-1]), to_input(raw).flip(3))
    assert not recwarn.list


def test_writable_arrays_are_not_copied():
    raw = images(2, 4, 4, 3)
    raw[0, 0, 0, 0] = 1
    shared = as_tensor(raw)
    raw[0, 0, 0, 0] = 2
    assert shared[0, 0, 0, 0] == 2


@pytest.mark.parametrize(
    "wrong",
    [
        images(4, 4, 3),
        images(2, 3, 4, 4),
        images(2, 4, 4, 3).astype(np.float32),
        torch.rand(2, 4, 4, 3),
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
    ],
)
def test_wrong_dtype_or_shape_is_refused(wrong):
    with pytest.raises(UserError, match="give"):
        to_input(wrong)


def test_normalise_is_no_part_of_the_state_dict():
    layer = Normalise([0.5, 0.5, 0.25], [0.5, 0.5, 0.5])
    x = torch.ones(1, 3, 2, 2)
    assert layer(x)[0, :, 0, 0].tolist() == [1.0, 1.0, 1.5]
    assert not layer.state_dict()
    assert len(list(layer.buffers())) == 2
