"""What would hide what in a chart: curves that lie on one another, and dots at one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def together(curves: Mapping[str, Array]) -> list[list[str]]:
    """Gather the labels of curves that lie on one another: nowhere further apart than 0.5 % of what all range over.

    A label joins the first group whose first curve it lies on. Groups of one are left out.
    """
    known = np.concatenate([curve[np.isfinite(curve)] for curve in curves.values()])
    near = 0.005 * float(np.ptp(known)) if len(known) else 0.0
    groups: list[list[str]] = []
    for label, curve in curves.items():
        home = next((group for group in groups if _coincide(curves[group[0]], curve, near)), None)
        if home is None:
            groups.append([label])
        else:
            home.append(label)
    return [group for group in groups if len(group) > 1]


def coincidence(curves: Mapping[str, Array]) -> str:
    """Say which curves share a line: `=` where they are equal, `≈` where they differ by less than shows."""
    words = []
    for group in together(curves):
        same = [np.array_equal(curves[a], curves[b], equal_nan=True) for a, b in pairwise(group)]
        words.append(group[0] + "".join(f" {'=' if s else '≈'} {b}" for s, b in zip(same, group[1:], strict=True)))
    return "; ".join(words)


def step_aside(values: Sequence[float], near: float) -> list[float]:
    """Return how far each dot of one row moves off its middle, in rows, so that dots closer than `near` all show.

    >>> step_aside([5.0, 1.0, 5.0], near=0.1)
    [-0.1, 0.0, 0.1]
    """
    order = sorted((k for k, value in enumerate(values) if np.isfinite(value)), key=lambda k: values[k])
    crowds: list[list[int]] = []
    for k in order:
        if crowds and values[k] - values[crowds[-1][0]] < near:
            crowds[-1].append(k)
        else:
            crowds.append([k])
    aside = [0.0] * len(values)
    for crowd in crowds:
        step = min(0.2, 0.8 / max(1, len(crowd) - 1))
        for place, k in enumerate(sorted(crowd)):
            aside[k] = step * (place - (len(crowd) - 1) / 2)
    return aside


def covered(values: Array, near: float) -> NDArray[np.int64]:
    """Return, for values[lines, places], how many of the lines drawn later have a dot at most `near` each dot."""
    close = np.abs(values[:, None] - values[None, :]) <= near
    later = np.triu(np.ones(2 * (len(values),), bool), 1)[..., None]
    return np.asarray((close & later).sum(1))


def near_dots(values: NDArray[np.float64]) -> float:
    """Return how close two dots of a row must lie for one to hide the other: a hundredth of what all range over."""
    known = values[np.isfinite(values)]
    return 0.01 * float(np.ptp(known)) + 1e-9 if len(known) else 0.0


def _coincide(one: Array, other: Array, near: float) -> bool:
    return len(one) == len(other) and bool(np.allclose(one, other, rtol=0, atol=near, equal_nan=True))
