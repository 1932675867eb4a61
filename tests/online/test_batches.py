from __future__ import annotations

import numpy as np
import pytest
import torch

from fedctta.online.batches import Window, is_finite, to_batch

CPU = torch.device("cpu")


def test_floats_stay_as_they_are_and_bytes_come_between_0_and_1():
    x = torch.randn(2, 5)
    assert to_batch(x, CPU) is x
    assert to_batch(x.double().numpy(), CPU).dtype == torch.float32
    images = np.full((2, 4, 6, 3), 255, np.uint8)
    assert to_batch(images, CPU).shape == (2, 3, 4, 6)
    assert to_batch(images, CPU).eq(1).all()
    assert to_batch(torch.zeros(2, 1, 4, 6, dtype=torch.uint8), CPU).shape == (2, 1, 4, 6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_is_what_every_value_is_and_not_what_their_sum_is_in_16_bits(dtype):
    x = torch.full((8, 3, 64, 64), 0.9, dtype=dtype)
    assert is_finite(x)
    for poison in (torch.nan, torch.inf, -torch.inf):
        x[1, 2, 3, 4] = poison
        assert not is_finite(x)


def test_a_window_keeps_copies_of_the_last_images():
    window = Window(3)
    x = torch.arange(2.0)[:, None]
    window.add(x)
    assert not window.full
    assert not window.due()
    window.add(x + 2)
    x += 9
    assert window.full
    assert window.images.flatten().tolist() == [1, 2, 3]
    assert window.due()
    assert not window.due()
    window.add(torch.zeros(1, 2))
    assert window.images.shape == (1, 2)


def test_a_window_without_room_keeps_nothing():
    window = Window(0)
    window.add(torch.zeros(2, 1))
    assert not window.full
