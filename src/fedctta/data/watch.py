"""Recordings of a wrist sensor as windows, person by person.

A recording is one exercise of one person with one arm: acceleration and turning rate on three axes, 50 times a second.
It is cut into windows of two seconds that do not overlap. The last quarter of every recording is held out.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.layouts import ArraysOnly
from fedctta.data.public_sets import HELD
from fedctta.errors import UserError

WINDOW = 100
"""Samples per window: two seconds."""


class Cut(NamedTuple):
    """The windows float32 [n, channels, WINDOW] of one domain and their labels [n]; the first `held` are held out."""

    windows: NDArray[np.float32]
    labels: NDArray[np.int64]
    held: int


class _WithBytes(ArraysOnly):
    """Reads pickles of Python 2 as well, in which bytes are text that is encoded."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")
        return super().find_class(module, name)


def cut_recordings(content: bytes) -> dict[str, Cut]:
    """Read the file of all recordings and return the windows of every person."""
    held: dict[str, list[Any]] = {}
    others: dict[str, list[Any]] = {}
    for series, label, person in _recordings(content):
        name = f"person-{person:02d}"
        border = len(series) * (HELD - 1) // HELD
        held.setdefault(name, []).extend((window, label) for window in _windows(series[border:]))
        others.setdefault(name, []).extend((window, label) for window in _windows(series[:border]))
    return {name: _join(held[name], others[name]) for name in sorted(held)}


def _recordings(content: bytes) -> list[tuple[NDArray[Any], int, int]]:
    """Return every recording [samples, channels] with its class and its person."""
    file = io.BytesIO(content)
    try:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        found = _WithBytes(file, encoding="latin1").load().item()
        return [
            (np.asarray(x), int(y), int(p)) for x, y, p in zip(found["X"], found["y"], found["subject"], strict=True)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise UserError(f"the recordings cannot be read ({error}): get them anew") from error


def _windows(series: NDArray[Any]) -> NDArray[np.float32]:
    """Cut a series [samples, channels] into [n, channels, WINDOW]; what is left over at the end is dropped."""
    count = len(series) // WINDOW
    whole = series[: count * WINDOW].reshape(count, WINDOW, series.shape[1])
    return np.ascontiguousarray(whole.transpose(0, 2, 1), np.float32)


def _join(held: list[Any], others: list[Any]) -> Cut:
    windows, labels = zip(*held, *others, strict=True)
    return Cut(np.stack(windows), np.array(labels, np.int64), len(held))
