"""From a description to results: `run` plays experiments and returns a `Result`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import nn

import fedctta
from fedctta import report
from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.data.converters import from_datasets, is_dataset
from fedctta.data.domains import Domains
from fedctta.data.masked import MaskedDomains
from fedctta.errors import UserError
from fedctta.files import require_writable, whole
from fedctta.registry import Registry, parameters_of
from fedctta.report.titles import TITLE
from fedctta.results.records import Record, to_json
from fedctta.runs.baseline import add_baselines, refuse_idle_baseline
from fedctta.runs.build import choose_methods
from fedctta.runs.cache import Cache
from fedctta.runs.jobs import side_by_side
from fedctta.runs.output_folder import claim_folder
from fedctta.runs.own_data import refuse_idle_source_images
from fedctta.runs.progress import RoundBar
from fedctta.runs.published import refuse_idle_numbers, suits
from fedctta.runs.settings import Experiment, expand, load_preset
from fedctta.runs.trial import check, run_one
from fedctta.sampling import Sampler, samplers
from fedctta.streams import Schedule, schedules

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """The results of the runs: records with every count, as a table, as figures, as files.

    `records` are those of the runs that were asked for. Tables, figures and files also show the `baselines`: the model
    as it is, in the same settings.
    """

    records: tuple[Record, ...]
    title: str = TITLE
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    baselines: tuple[Record, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def summaries(self) -> list[dict[str, Any]]:
        """Return every run as plain values (what the JSON file holds)."""
        return [record.summary() for record in self.shown]

    @property
    def shown(self) -> tuple[Record, ...]:
        """All runs that tables, figures and files show."""
        return (*self.records, *self.baselines)

    def table(self) -> report.Table:
        """Return methods by streams: mean and spread over seeds, the paper's number beside ours.

        Its `harm` says which methods end below doing nothing.
        """
        return report.results_table(self.shown, self.published)

    def health(self) -> list[str]:
        """Say how the clients fared without labels, in a sentence per method; nothing without `check`.

        Numbers of every client are in `Record.health`.
        """
        return list(report.describe_health(report.arrange(self.records)))

    def plot(self) -> Figure:
        """Return an overview figure: accuracy over time and by domain."""
        return report.plot(self.shown)

    def write_report(self, folder: str | Path) -> Path:
        """Write report.html, figures and tables; return the page's path."""
        return report.write_report(self.shown, Path(folder), self.published, self.title)

    def write_json(self, file: str | Path) -> None:
        """Write all summaries as JSON."""
        content = {"fedctta": fedctta.__version__, "runs": to_json(self.summaries())}
        with whole(Path(file)) as part:
            part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def run(
    preset: str | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    jobs: int = 1,
    baseline: bool = True,
    progress: bool = False,
    console: Console | None = None,
    **values: Any,
) -> Result:
    """Play every combination of the given values and return the results.

    Values are those of `Experiment`; a list is a sweep. Methods are named or given as objects
    (`aggregator=FedCTTA(ema=0.9)`); `model` may be any `nn.Module` with its weights, `dataset` your own `Domains`, or
    a dictionary of torch or Hugging Face data sets by domain. Parameters of methods are dotted:
    `run(**{"fedctta.temperature": [0.5, 1]})`; they replace those of an object given with them, and an object's
    parameters replace a preset's. With `out`, finished runs are kept there and `resume=True` continues where an
    interrupted call stopped; `jobs` runs are then played at once. The model as it is (No-Adapt) is run too, once per
    setting, unless it is among the runs, there are no labels, or `baseline=False`.
    """
    console = console or Console(stderr=True, quiet=not progress)
    chosen = load_preset(preset) if preset else None
    values, objects = _name_objects(values)
    asked = expand({**(chosen.values if chosen else {}), **values})
    refuse_idle_source_images(asked)
    if chosen and chosen.own:
        refuse_idle_numbers(str(preset), chosen, asked)
    folder = None if out is None else Path(out)
    if folder is not None:
        require_writable(folder / "runs")
    if jobs != 1:
        _refuse_jobs(folder, objects, asked)
    records = []
    cache = Cache(objects)
    for experiment in asked:
        choose_methods(experiment)  # what is wrong with parameters is said before data are loaded
    distinct = _check_all(asked, cache) if len(asked) > 1 else asked
    if not baseline:
        refuse_idle_baseline(distinct, cache)
    experiments = add_baselines(distinct, cache) if baseline else distinct
    with claim_folder(folder, asked, resume):
        if folder is not None and jobs != 1:
            _play_at_once(experiments, folder, jobs, resume, console)
            resume = True
        with RoundBar(console, progress) as bar:
            for k, experiment in enumerate(experiments):
                label = f"[{k + 1}/{len(experiments)}] {experiment.stream} {experiment.adapter}+{experiment.aggregator}"
                watch = partial(bar.watch, f"{label} seed {experiment.seed}")
                records.append(run_one(experiment, cache, folder, resume, watch))
    mine, added = tuple(records[: len(distinct)]), tuple(records[len(distinct) :])
    if chosen is None or (chosen.published and not suits(chosen, asked)):
        return Result(mine, baselines=added)
    return Result(mine, chosen.title, chosen.published, added)


def read_experiments(preset: str | None, values: Mapping[str, Any]) -> list[Experiment]:
    """Return the experiments that a preset and words describe."""
    return expand({**(load_preset(preset).values if preset else {}), **values})


def _check_all(experiments: Sequence[Experiment], cache: Cache) -> list[Experiment]:
    """Refuse what cannot be played; of experiments that only their words tell apart, return the first."""
    found: dict[str, Experiment] = {}
    for experiment in experiments:
        found.setdefault(check(experiment, cache), experiment)
    return list(found.values())


def _play_at_once(
    experiments: Sequence[Experiment],
    folder: Path,
    jobs: int,
    resume: bool,
    console: Console,
) -> None:
    """Play all experiments into the folder, several at once."""
    done = partial(_tell, console, len(experiments), [])
    for reason in side_by_side(experiments, folder, jobs, resume, done).values():
        raise UserError(reason)


def _tell(console: Console, count: int, done: list[str], experiment: Experiment, reason: str) -> None:
    done.append(experiment.fingerprint)
    name = f"{experiment.stream} {experiment.adapter}+{experiment.aggregator} seed {experiment.seed}"
    console.print(f"[{len(done)}/{count}] {name}{': ' + reason if reason else ''}", style="dim", markup=False)


_GIVEN: set[type[Any]] = set()
"""Classes that only this process knows: of methods given as objects, which no module or plugin brings."""


def _refuse_jobs(folder: Path | None, objects: Mapping[str, Any], experiments: Sequence[Experiment]) -> None:
    """Refuse to play at once what other processes could not find or keep."""
    methods = {type(method) for experiment in experiments for method in choose_methods(experiment)}
    if folder is None or objects or methods & _GIVEN:
        raise UserError(
            "jobs need a folder for their records, and methods, model and data by name: give out=, no objects"
        )


def _name_objects(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace methods, models and data given as objects by names; return (plain values, objects by key)."""
    plain, objects = dict(values), {}
    registries: dict[str, tuple[Registry[Any], type[Any]]] = {
        "adapter": (adapters, Adapter),
        "aggregator": (aggregators, Aggregator),
        "stream": (schedules, Schedule),
        "samples": (samplers, Sampler),
    }
    for kind, (registry, base) in registries.items():
        given = plain.get(kind)
        options: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
        for option in options:
            if isinstance(option, type) and issubclass(option, base):
                raise UserError(f"{kind}={option.__name__} is a class: call it, {kind}={option.__name__}()")
        if not any(isinstance(option, base) for option in options):
            continue
        names = [option.name if isinstance(option, base) else option for option in options]
        if len(set(names)) < len(names):
            raise UserError(f"{kind} holds a method twice: sweep its parameters instead, as name.parameter=[a, b]")
        plain[kind] = [option.name if isinstance(option, base) else option for option in options]
        for option in options:
            if isinstance(option, base):
                if registry.classes().get(option.name) is not type(option):
                    _GIVEN.add(registry.register(type(option)))
                its = {f"{option.name}.{key}": [value] for key, value in parameters_of(option).items()}
                plain = its | plain  # a dotted key replaces the object's value
    if "dataset" in plain:
        plain["dataset"] = _data(plain["dataset"])
    if "model" in plain:
        _check_model(plain["model"])
    for key, kinds in (("model", (nn.Module,)), ("dataset", (Domains, MaskedDomains))):
        if isinstance(plain.get(key), kinds):
            objects[key] = plain[key]
            plain[key] = type(plain[key]).__name__.lower()
    return plain, objects


def _check_model(given: Any) -> None:
    """Refuse what is neither a model, nor its name, nor names."""
    names = given if isinstance(given, (list, tuple)) else [given]
    if isinstance(given, nn.Module) or (names and all(isinstance(name, str) for name in names)):
        return
    if isinstance(given, Mapping):
        raise UserError("model is a dictionary, perhaps a state dict: build the model, and load it by load_state_dict")
    if callable(given):
        raise UserError(f"model is a {type(given).__name__}: call it, and give the torch.nn.Module that it returns")
    raise UserError(f"model is a {type(given).__name__}: give one torch.nn.Module, a name, or names")


def _data(given: Any) -> Any:
    """Return names of data sets and `Domains` as they are, and data sets of other libraries as `Domains`."""
    names = given if isinstance(given, (list, tuple)) else [given]
    if all(isinstance(name, str) for name in names) or isinstance(given, (Domains, MaskedDomains)):
        return given
    if is_dataset(given):
        return from_datasets(given)
    raise UserError(
        f"dataset is a {type(given).__name__}: give a name, names, one Domains, or a dictionary of data sets by domain"
    )
