"""One colour a method, the same in every figure and on the page.

The hues are told apart with the common forms of colour blindness (after Okabe and Ito) and on a light as
well as on a dark ground; when they run out they return as dashed lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedctta.report.titles import own_colours


class Pen(NamedTuple):
    """How a method is drawn."""

    colour: str
    dashed: bool


_HUES = ("#0072b2", "#009e73", "#cc79a7", "#999933", "#7b6fd0", "#d55e00", "#56b4e9", "#e69f00")


def pens(labels: Iterable[str]) -> dict[str, Pen]:
    """Give every label its pen: of the method's own colour if it has one, and otherwise the next free one.

    An upper bound of its own colour is dashed.
    """
    names = list(dict.fromkeys(labels))
    fixed = {title: Pen(*look) for title, look in own_colours().items()}
    taken = {fixed[name] for name in names if name in fixed}
    free = (pen for dashed in (False, True) for hue in _HUES if (pen := Pen(hue, dashed)) not in taken)
    return {name: fixed.get(name) or next(free, Pen("#8a8f98", True)) for name in names}
