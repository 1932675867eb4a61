"""Which runs belong together: the column of the table a run stands in, and the label of its method.

A column is one setting in which methods are compared: the stream, and with it whatever else of the
surroundings varies among the runs (data set, adapter, model, batch size and so on). A row is a method: the
aggregator, and with it those of its parameters that vary. Runs that share both are seeds of one experiment, whatever
computed them; of two with the same seed, the first counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedctta.errors import UserError
from fedctta.keys import Keys
from fedctta.registry import defaults
from fedctta.report.titles import find_method, is_idle, method_title, rank
from fedctta.results.records import Record

_BARE = ("dataset", "stream", "adapter")  # named in a column by their value alone
_SURROUNDINGS = (
    *("severity", "domains", "model", "weights", "clients", "batch", "slots", "samples", "order", "precision"),
    *("predict", "storage", "check", "guard", "stragglers", "delay", "stale", "decay"),
    *("robust", "cap", "clip", "trim", "liars", "lie", "lie_until", "noise", "epsilon", "delta", "min_batch"),
)
_FOLLOWS = (  # the seed, and what follows from it and from other keys
    *("seed", "source", "notes", "sh", "th", "lying", "quiet", "privacy", "classes"),
)
_COMPUTED_BY = ("device", "lift", "hardware", "torch")  # told only of runs that nothing else tells apart
_OF_ADAPTING = {"adapter", *_SURROUNDINGS[_SURROUNDINGS.index("predict") :]}  # nothing to a run without adaptation


@dataclass(frozen=True)
class Column:
    """One setting, and the runs of every method in it (one per seed)."""

    name: str
    stream: str
    methods: Mapping[str, tuple[Record, ...]]


def arrange(records: Sequence[Record]) -> tuple[Column, ...]:
    """Sort runs into columns and methods.

    A run without adaptation is shown in every column that differs from its own in the adapter only, and in those that
    differ in nothing that matters to it and have no other.
    """
    if not records:
        raise UserError("there is no run to report: run an experiment first")
    runs = [flat(record.settings) for record in records]
    keys = _column_keys(runs)
    places = [tuple(_key(run.get(key)) for key in keys) for run in runs]
    labels = _labels(runs, places, keys)
    idle = {place for run, place in zip(runs, places, strict=True) if is_idle(run)}
    active = [place for run, place in zip(runs, places, strict=True) if not is_idle(run)]
    guests = {home: _guests(home, idle, keys) for home in dict.fromkeys(active)}

    names: dict[tuple[str, ...], tuple[str, str]] = {}
    cells: dict[tuple[str, ...], dict[str, dict[str, Record]]] = {}
    for record, run, place, label in zip(records, runs, places, labels, strict=True):
        homes = [home for home, found in guests.items() if place in found] if is_idle(run) else [place]
        for home in homes or [place]:
            seeds = cells.setdefault(home, {}).setdefault(label, {})
            seeds.setdefault(_key(run.get("seed")), record)
        names[place] = (_column_name(run, keys), str(run.get("stream", "")))
    return tuple(
        Column(*names[place], methods={label: tuple(found[label].values()) for label in in_order(found)})
        for place, found in cells.items()
    )


def in_order(labels: Iterable[str]) -> list[str]:
    """Put the baselines first and the upper bound last; leave the others as they came."""
    return sorted(dict.fromkeys(labels), key=lambda label: rank(find_method(label)))


def methods(columns: Iterable[Column]) -> list[str]:
    """Return every method label met in the columns, in order."""
    return in_order(label for column in columns for label in column.methods)


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested settings with dotted names.

    >>> flat({"seed": 0, "fedctta": {"temperature": 0.5}})
    {'seed': 0, 'fedctta.temperature': 0.5}
    """
    out: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        out |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return out


def varying(runs: Sequence[Mapping[str, Any]], apart: Iterable[str] = _FOLLOWS) -> list[str]:
    """Return the keys whose values are not the same in all runs, apart from the seed and what only follows."""
    every = dict.fromkeys(key for run in runs for key in run if key.partition(".")[0] not in apart)
    return [key for key in every if len({_key(run.get(key)) for run in runs}) > 1]


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _column_keys(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Name what tells columns apart: stream, data set, adapter, then only what these do not imply."""
    active = [run for run in runs if not is_idle(run)] or list(runs)
    keys = [key for key in _BARE if key == "stream" or len({_key(run.get(key)) for run in active}) > 1]
    of_stream = {key for run in runs for key in run if _is_stream_parameter(key, run)}
    for key in (*_SURROUNDINGS, *sorted(of_stream)):
        groups: dict[tuple[str, ...], set[str]] = {}
        for run in active:
            groups.setdefault(tuple(_key(run.get(k)) for k in keys), set()).add(_key(run.get(key)))
        if any(len(values) > 1 for values in groups.values()):
            keys.append(key)
    return keys


def _is_stream_parameter(key: str, run: Mapping[str, Any]) -> bool:
    head, dot, _ = key.partition(".")
    return bool(dot) and (head.startswith("stream") or head in (run.get("stream"), run.get("samples")))


def _labels(runs: Sequence[dict[str, Any]], places: Sequence[tuple[str, ...]], keys: Sequence[str]) -> list[str]:
    names = [method_title(run) for run in runs]
    together: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for name, place, run in zip(names, places, runs, strict=True):
        together.setdefault(name, {}).setdefault(place, []).append(run)
    told_by = {
        name: list(dict.fromkeys(key for group in found.values() for key in _telling(group, keys)))
        for name, found in together.items()
    }
    return [_with_parameters(name, run, told_by[name]) for name, run in zip(names, runs, strict=True)]


def _telling(runs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Return the keys that tell the runs of one method and column apart, apart from their seeds."""
    found = [key for key in varying(runs) if key not in keys]
    own = [key for key in found if key not in _COMPUTED_BY]
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        alike.setdefault(tuple(_key(run.get(key)) for key in ("seed", *own)), []).append(run)
    again = {key for same in alike.values() for key in varying(same)}
    return [key for key in found if key in own or key in again]


def _with_parameters(name: str, run: Mapping[str, Any], keys: Sequence[str]) -> str:
    short = [key.rpartition(".")[2] for key in keys]
    shown = [s if short.count(s) == 1 else key for s, key in zip(short, keys, strict=True)]
    return " ".join([name, *(f"{s}={run[key]}" for s, key in zip(shown, keys, strict=True) if key in run)])


def _column_name(run: Mapping[str, Any], keys: Sequence[str]) -> str:
    usual = defaults(Keys)  # a newer key is recorded only where it is not the default
    told = ((k, run.get(k, usual.get(k, "-"))) for k in keys)
    parts = (str(value) if k in _BARE else f"{k.rpartition('.')[2]}={value}" for k, value in told)
    return " / ".join(parts)


def _guests(home: tuple[str, ...], idle: Iterable[tuple[str, ...]], keys: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the places of runs without adaptation that belong in a column, too."""
    for but in ({"adapter"}, _OF_ADAPTING):
        found = [p for p in idle if all(a == b for a, b, key in zip(p, home, keys, strict=True) if key not in but)]
        if found:
            return found
    return []
