"""Random numbers from the operating system, which nobody can guess or repeat: for noise that protects.

Numbers of `randomness` are hashes of a key of 32 bits: repeatable, and no secret. These here are made of twice 53 bits
of `os.urandom` each, by Box and Muller in float64. They lie within 8.6 deviations, and are rounded to what the caller
computes with: the last bits of a noisy number may tell more than its value.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor


def draw_normal(count: int) -> Tensor:
    """Return standard normal numbers[count], float64, on the CPU."""
    bits = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(2, count) >> np.uint64(11)
    first, second = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return torch.from_numpy(np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second))
