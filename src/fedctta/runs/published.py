"""The numbers that a preset gives as a paper's: which runs they may be shown beside, and whether any run has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.errors import UserError, unknown
from fedctta.registry import defaults
from fedctta.report.columns import Column, arrange, methods
from fedctta.runs.baseline import baseline_of
from fedctta.runs.build import choose_methods
from fedctta.runs.settings import Experiment, Preset, expand
from fedctta.sampling import samplers
from fedctta.streams import schedules


def suits(preset: Preset, experiments: Sequence[Experiment]) -> bool:
    """Whether experiments are of the preset's data, clients, batch and adapter: else its numbers are of others."""
    return {_protocol(each) for each in experiments} <= {_protocol(each) for each in expand(preset.values)}


def _protocol(experiment: Experiment) -> tuple[Any, ...]:
    clients = choose_methods(experiment).count_clients(experiment)
    data = (experiment.dataset, experiment.severity, experiment.domains)
    return *data, clients, experiment.batch, experiment.adapter


def refuse_idle_numbers(name: str, preset: Preset, experiments: Sequence[Experiment]) -> None:
    """Refuse published labels and columns that neither a run of the file has nor one that is asked for."""
    tables = [_columns(experiments)]
    with suppress(UserError):  # words may add what the file lacks
        tables.append(_columns(expand(preset.values)))
    known = [label for columns in tables for label in methods(columns)]
    rows = {label.casefold() for label in known}
    places = {place for columns in tables for place in _places(columns)}
    for label, numbers in preset.published.items():
        if label.casefold() not in rows:
            raise unknown(f"method in [published] of {name}", label, set(known))
        for column in numbers:
            if column not in places:
                raise unknown(f"column of {label} in [published] of {name}", column, places)


def _columns(experiments: Sequence[Experiment]) -> list[Column]:
    """Return the columns of a table of these runs, with the runs without adaptation, before there are any records."""
    every = [*experiments, *(baseline_of(each) for each in experiments)]
    return list(arrange(cast(Any, [SimpleNamespace(settings=_settings(each)) for each in every])))


def _places(columns: Sequence[Column]) -> set[str]:
    """Return the names that find one column: its own, and its stream's where no other has that."""
    streams = [column.stream for column in columns]
    return {column.name for column in columns} | {name for name in streams if streams.count(name) == 1}


def _settings(experiment: Experiment) -> Mapping[str, Any]:
    named: dict[str, Any] = {}
    kinds = (adapters, experiment.adapter), (aggregators, experiment.aggregator)
    for registry, name in (*kinds, (schedules, experiment.stream), (samplers, experiment.samples)):
        named[name] = {**named.get(name, {}), **defaults(registry.classes()[name])}
    for name, own in experiment.parameters.items():
        named[name] |= own
    return {**{key: value for key, value in asdict(experiment).items() if key != "parameters"}, **named}
