"""One colour a method, the same in every figure and on the page.

The hues are told apart with the common forms of colour blindness (after Okabe and Ito) and on a light as
well as on a dark ground; when they run out they return as dashed lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedctta.report.columns import NO_ADAPT, ORACLE


class Pen(NamedTuple):
    """How a method is drawn."""

    colour: str
    dashed: bool


_FIXED = {
    NO_ADAPT: Pen("#8a8f98", False),
    "Local": Pen("#56b4e9", False),
    "FedAvg": Pen("#e69f00", False),
    "FedCTTA": Pen("#d55e00", False),
    ORACLE: Pen("#8a8f98", True),
}
_HUES = ("#0072b2", "#009e73", "#cc79a7", "#999933", "#7b6fd0", "#d55e00", "#56b4e9", "#e69f00")


def pens(labels: Iterable[str]) -> dict[str, Pen]:
    """Give every label its pen: a fixed one for common methods, the next free one for the others."""
    names = list(dict.fromkeys(labels))
    taken = {_FIXED[name] for name in names if name in _FIXED}
    free = (pen for dashed in (False, True) for hue in _HUES if (pen := Pen(hue, dashed)) not in taken)
    return {name: _FIXED.get(name) or next(free, Pen("#8a8f98", True)) for name in names}
