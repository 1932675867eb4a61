"""What the label of a row says of its method: the label begins with the title that stands in the method's class.

A row is an aggregator, or an adapter that adapts nothing, for which no aggregator matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.registry import own_title

TITLE = "Federated continual test-time adaptation"  # of a report without another

Method = type[Adapter] | type[Aggregator]


def is_idle(settings: Mapping[str, Any]) -> bool:
    """Whether a run adapts nothing."""
    adapter = adapters.classes().get(str(settings.get("adapter")))
    return adapter is not None and not adapter.adapts


def method_title(settings: Mapping[str, Any]) -> str:
    """Return what tables call a run's method, without parameters."""
    if is_idle(settings):
        return adapters.title(str(settings["adapter"]))
    return aggregators.title(str(settings.get("aggregator", "-")))


def titled() -> dict[str, Method]:
    """Return every method that can be a row, by title."""
    rows: list[Method] = [cls for cls in adapters.classes().values() if not cls.adapts]
    rows += aggregators.classes().values()
    return {own_title(cls): cls for cls in rows}


def find_method(label: str) -> Method | None:
    """Return the method of a row: its label is the title, perhaps with more (`FedAvg interval=1`, `FedAvg, bn`)."""
    known = titled()
    fitting = [title for title in known if re.match(rf"{re.escape(title)}(,| [\w.]+=|$)", label)]
    return known[max(fitting, key=len)] if fitting else None


def rank(method: Method | None) -> int:
    """Return a method's place: what adapts nothing, baselines, all others (and unknown ones), upper bounds."""
    if method is None:
        return 3
    if issubclass(method, Adapter):
        return 0
    if method.upper_bound:
        return 4
    return 3 if not vars(method).get("baseline") else 2 if method.communicates else 1


def is_idle_row(label: str) -> bool:
    """Whether a row is a model that adapts nothing, by its label."""
    return rank(find_method(label)) == 0


def is_method(label: str) -> bool:
    """Whether a row is neither a baseline nor an upper bound."""
    return rank(find_method(label)) == 3


def own_colours() -> dict[str, tuple[str, bool]]:
    """Return the colour of every method that has one, by title, and whether the method is an upper bound."""
    found = titled().items()
    return {title: (cls.colour, _bounds(cls)) for title, cls in found if vars(cls).get("colour")}


def is_bound(label: str, settings: Iterable[Mapping[str, Any]] = ()) -> bool:
    """Whether a row, by its label or the settings of its runs, is an upper bound, which competes with no method."""
    if _bounds(find_method(label)):
        return True
    return any(_bounds(aggregators.classes().get(str(each.get("aggregator")))) for each in settings)


def _bounds(method: Method | None) -> bool:
    return method is not None and issubclass(method, Aggregator) and method.upper_bound
