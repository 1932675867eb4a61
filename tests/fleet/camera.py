"""A camera for devices under test: one batch of images every so often, from a common beginning on.

Images are numbered, so that a device which was away takes up where it stopped, and catches up.
"""

from __future__ import annotations

import os
import time

import numpy as np

PACE, BATCH = 0.25, 10


class Camera:
    """Batches of noise, in a few shades; batch n is there at FLEET_BEGAN + n PACE."""

    def __init__(self):
        self._began = float(os.environ["FLEET_BEGAN"])
        random = np.random.default_rng(0)
        self._batches = [random.integers(0, 63 * (k % 4 + 1), (BATCH, 32, 32, 3), np.uint8) for k in range(8)]

    def __len__(self):
        return 10**9

    def __iter__(self):
        number = 0
        while True:
            time.sleep(max(0.0, self._began + number * PACE - time.time()))
            yield self._batches[number % len(self._batches)]
            number += 1
