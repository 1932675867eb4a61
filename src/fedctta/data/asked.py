"""What is asked for of a data set, the same for all kinds of sets: its domains, and no key that it has no use for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedctta.data.masked import Some
from fedctta.errors import UserError, unknown
from fedctta.registry import read_names

EVERY = ("benchmark", "all")  # names of all domains
SEVERITY = 5  # what is asked for where nobody asks

_USUAL = {"severity": SEVERITY, "folder": None, "layout": "auto", "size": None}


def refuse_idle(what: str, **values: Any) -> None:
    """Refuse keys that have no effect on what is asked for."""
    for key, value in values.items():
        if value != _USUAL[key]:
            raise UserError(f"{key}={value} has no effect on {what}: drop the key")


def choose(data: Some, domains: str) -> Some:
    """Return the domains named, joined by "+", in this order, or all; classes stay those of all."""
    if domains in EVERY:
        return data
    names = read_names(domains, "domains")
    for name in names:
        if name not in data.names:
            raise unknown("domain", name, data.names)
    labels: Any = data.labels
    if isinstance(labels, Mapping):
        labels = {name: labels.get(name) for name in names}
    return replace(data, names=names, images={name: data.images[name] for name in names}, labels=labels)
