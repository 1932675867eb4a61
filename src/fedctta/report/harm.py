"""Methods that end below doing nothing, marked wherever a table is shown, and said in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple

LEAST = 0.05  # points: less is not seen with one digit
MARK = "▼"


class Harm(NamedTuple):
    """A method that ends below the model as it is, in one column, and by how many points (of accuracy, or of mIoU)."""

    method: str
    column: str
    points: float


def find_harm(column: str, means: Mapping[str, float], idle: Iterable[str]) -> Iterator[Harm]:
    """Yield the methods of a column whose mean is below that of the rows `idle`, which adapt nothing."""
    known = {label: mean for label, mean in means.items() if isfinite(mean)}
    untouched = {label: known[label] for label in idle if label in known}
    for label, mean in known.items():
        if untouched and label not in untouched and max(untouched.values()) - mean >= LEAST:
            yield Harm(label, column, max(untouched.values()) - mean)


def describe_harm(found: Iterable[Harm], measure: str = "") -> Iterator[str]:
    """Yield a sentence per method: where it ends below doing nothing, and by how much.

    >>> list(describe_harm([Harm("FedAvg", "niid", 2.94), Harm("FedAvg", "iid", 12)]))
    ['FedAvg is 2.9 points below doing nothing on niid, 12.0 on iid.']
    """
    by_method: dict[str, list[Harm]] = {}
    for each in found:
        by_method.setdefault(each.method, []).append(each)
    for method, (first, *others) in by_method.items():
        points = f"points of {measure}" if measure else "points"
        more = "".join(f", {each.points:.1f} on {each.column}" for each in others)
        yield f"{method} is {first.points:.1f} {points} below doing nothing on {first.column}{more}."
