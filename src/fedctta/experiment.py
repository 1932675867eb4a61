"""From a description to what happened: `run` plays experiments and returns a `Result`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from torch import nn

import fedctta
from fedctta import report
from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.data.corrupted import Domains
from fedctta.data.masked import MaskedDomains
from fedctta.errors import UserError
from fedctta.files import require_writable, whole
from fedctta.machine import arithmetic, choose_device, peak_memory_mb, reset_peak_memory
from fedctta.progress import RoundBar
from fedctta.records import Record
from fedctta.registry import Registry, parameters_of
from fedctta.retention import Retention
from fedctta.rounds import Federation, simulate
from fedctta.sampling import Sampler, samplers
from fedctta.settings import Experiment, expand, load_preset
from fedctta.streams import Schedule, Stream, schedules
from fedctta.tally import Tally
from fedctta.workshop import Workshop

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """What the runs gave: records with every count, as a table, as pictures, as files."""

    records: tuple[Record, ...]
    title: str = "Federated continual test-time adaptation"
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __iter__(self) -> Any:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def summaries(self) -> list[dict[str, Any]]:
        """Return every run as plain values (what the JSON file holds)."""
        return [record.summary() for record in self.records]

    def table(self) -> report.Table:
        """Return methods by streams: mean and spread over seeds, the paper's number beside ours."""
        return report.results_table(self.records, self.published)

    def plot(self) -> Figure:
        """Return an overview figure: accuracy over time and by domain."""
        return report.plot(self.records)

    def write_report(self, folder: str | Path) -> Path:
        """Write report.html, figures and tables; return the page's path."""
        return report.write_report(self.records, Path(folder), self.published, self.title)

    def write_json(self, file: str | Path) -> None:
        """Write all summaries as JSON."""
        content = {"fedctta": fedctta.__version__, "runs": self.summaries()}
        with whole(Path(file)) as part:
            part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def run(
    preset: str | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
    console: Console | None = None,
    **values: Any,
) -> Result:
    """Play every combination of the given values and return what happened.

    Values are those of `Experiment`; a list is a sweep. Methods are named or given as objects
    (`aggregator=FedCTTA(ema=0.9)`); `model` may be any `nn.Module` with weights of your own, `dataset` your own
    `Domains`. Parameters of methods are dotted: `run(**{"fedctta.temperature": [0.5, 1]})`. With `out`, finished runs
    are kept there and `resume=True` continues where an interrupted call stopped.
    """
    console = console or Console(stderr=True, quiet=not progress)
    chosen = load_preset(preset) if preset else None
    values, objects = _name_objects({**(chosen.values if chosen else {}), **values})
    experiments = expand(values)
    folder = None if out is None else Path(out)
    if folder is not None:
        require_writable(folder / "runs")
    records = []
    with RoundBar(console, progress) as bar:
        workshop = Workshop(objects)
        for k, experiment in enumerate(experiments):
            label = f"[{k + 1}/{len(experiments)}] {experiment.stream} {experiment.adapter}+{experiment.aggregator}"
            watch = partial(bar.watch, f"{label} seed {experiment.seed}")
            records.append(play(experiment, workshop, folder, resume, watch))
    found = Result(tuple(records))
    return found if chosen is None else Result(found.records, chosen.title, chosen.published)


def play(
    experiment: Experiment,
    workshop: Workshop,
    folder: Path | None,
    resume: bool,
    watch: Callable[[int], Callable[[int, Tally], None]],
) -> Record:
    """Play one experiment; keep its place while it runs and its record when it is done."""
    device = choose_device(experiment.device)
    federation, stream, settings = workshop.assemble(experiment, device)
    kept = checkpoint = None
    identity = _identity(experiment, federation, stream)
    if folder is not None:
        name = f"{experiment.stream}-{experiment.adapter}-{experiment.aggregator}-seed{experiment.seed}-{identity}"
        kept, checkpoint = folder / "runs" / f"{name}.safetensors", folder / "runs" / f"{name}.checkpoint"
        if resume and kept.exists():
            return Record.load(kept)
        if not resume:
            checkpoint.unlink(missing_ok=True)
    reset_peak_memory(device)
    retention = Retention(stream, experiment.retention, experiment.seed) if experiment.retention else None
    with arithmetic(experiment.precision):
        tally = simulate(
            federation,
            stream,
            checkpoint=checkpoint,
            fingerprint=identity,
            on_round=watch(len(stream)),
            retention=retention,
        )
    record = _record(settings, stream, tally, peak_memory_mb(device))
    if retention is not None:
        record = replace(record, retained=retention.accuracy.numpy(), retained_rounds=retention.rounds)
    if stream.data.dense:
        record = replace(record, pictures=stream.pictures(tally.masks.cpu().numpy()))
    if kept is not None and checkpoint is not None:
        record.save(kept)
        checkpoint.unlink(missing_ok=True)
    return record


def _identity(experiment: Experiment, federation: Federation, stream: Stream) -> str:
    """A short hash of all that decides the numbers: version, description, weights, schedule, samples, some images.

    And of the files the adapter reads.
    """
    digest = hashlib.sha256(f"{fedctta.__version__} {experiment.fingerprint}".encode())
    data = stream.data
    labels = data.labels.values() if isinstance(data, MaskedDomains) else (data.labels,)
    for array in (stream.domain, stream.samples, *labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for name in stream.data.names:
        digest.update(np.ascontiguousarray(stream.data.images[name][:4]).tobytes())
    for tensor in federation.network.state.values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    for path in federation.adapter.reads(federation.network):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _record(settings: Mapping[str, Any], stream: Stream, tally: Tally, peak: float) -> Record:
    matrices, rounds = tally.matrices.cpu().numpy(), tally.kept_rounds
    if not len(rounds):  # nobody collaborates: the identity, once
        matrices, rounds = np.eye(stream.clients, dtype=np.float32)[None], np.zeros(1, np.int64)
    return Record(
        settings=settings,
        domains=stream.data.names,
        seen=tally.seen(),
        correct=tally.correct.cpu().numpy(),
        domain=stream.domain,
        class_seen=stream.class_counts(),
        class_right=tally.right.cpu().numpy(),
        class_predicted=tally.predicted.cpu().numpy(),
        calibration=tally.calibration.cpu().numpy(),
        entropy=tally.entropy.cpu().numpy(),
        collaboration=matrices,
        collaboration_rounds=rounds,
        same_domain_weight=tally.same_domain_weight(),
        bytes_up=int(tally.bytes[0]),
        bytes_down=int(tally.bytes[1]),
        seconds=float(tally.seconds),
        peak_memory_mb=peak,
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
        if not any(isinstance(option, base) for option in options):
            continue
        names = [option.name if isinstance(option, base) else option for option in options]
        if len(set(names)) < len(names):
            raise UserError(f"{kind} holds a method twice: sweep its parameters instead, as name.parameter=[a, b]")
        plain[kind] = [option.name if isinstance(option, base) else option for option in options]
        for option in options:
            if isinstance(option, base):
                if registry.classes().get(option.name) is not type(option):
                    registry.register(type(option))
                plain |= {f"{option.name}.{key}": [value] for key, value in parameters_of(option).items()}
    for key, kinds in (("model", (nn.Module,)), ("dataset", (Domains, MaskedDomains))):
        if isinstance(plain.get(key), kinds):
            objects[key] = plain[key]
            plain[key] = type(plain[key]).__name__.lower()
    return plain, objects
