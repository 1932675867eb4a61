"""From a description to what happened: `run` plays experiments and returns a `Result`."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

import fedctta
from fedctta import report
from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, Server, aggregators
from fedctta.clients import choose_lift
from fedctta.data.catalogue import load
from fedctta.data.corrupted import Domains, load_domains
from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES
from fedctta.errors import UserError
from fedctta.files import require_writable, whole
from fedctta.machine import choose_device, exact_arithmetic, peak_memory_mb, reset_peak_memory
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model, load_weights
from fedctta.network import Network
from fedctta.progress import RoundBar
from fedctta.records import Record
from fedctta.registry import Registry, parameters_of
from fedctta.rounds import Federation, simulate
from fedctta.settings import Experiment, expand, load_preset
from fedctta.streams import Schedule, Stream, build, schedules
from fedctta.tally import Tally

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_MODEL = {"cifar10-c": "resnet8", "cifar100-c": "resnext29", "shapes-c": "resnet8-w16"}
DEFAULT_SLOTS = 50


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
    with exact_arithmetic(), RoundBar(console, progress) as bar:
        workshop = _Workshop(objects)
        for k, experiment in enumerate(experiments):
            label = f"[{k + 1}/{len(experiments)}] {experiment.stream} {experiment.adapter}+{experiment.aggregator}"
            watch = partial(bar.watch, f"{label} seed {experiment.seed}")
            records.append(_play(experiment, workshop, folder, resume, watch))
    found = Result(tuple(records))
    return found if chosen is None else Result(found.records, chosen.title, chosen.published)


def _play(
    experiment: Experiment,
    workshop: _Workshop,
    folder: Path | None,
    resume: bool,
    watch: Callable[[int], Callable[[int, Tally], None]],
) -> Record:
    """Play one experiment; keep its place while it runs and its record when it is done."""
    device = choose_device(experiment.device)
    federation, stream, settings = workshop.assemble(experiment, device)
    kept = checkpoint = None
    identity = _identity(experiment, federation.network, stream)
    if folder is not None:
        name = f"{experiment.stream}-{experiment.adapter}-{experiment.aggregator}-seed{experiment.seed}-{identity}"
        kept, checkpoint = folder / "runs" / f"{name}.safetensors", folder / "runs" / f"{name}.checkpoint"
        if resume and kept.exists():
            return Record.load(kept)
        if not resume:
            checkpoint.unlink(missing_ok=True)
    reset_peak_memory(device)
    tally = simulate(federation, stream, checkpoint=checkpoint, fingerprint=identity, on_round=watch(len(stream)))
    record = _record(settings, stream, tally, peak_memory_mb(device))
    if kept is not None and checkpoint is not None:
        record.save(kept)
        checkpoint.unlink(missing_ok=True)
    return record


def _identity(experiment: Experiment, network: Network, stream: Stream) -> str:
    """A short hash of all that decides the numbers: description, weights, schedule, samples, a look at the images."""
    digest = hashlib.sha256(experiment.fingerprint.encode())
    for array in (stream.domain, stream.samples, stream.data.labels):
        digest.update(np.ascontiguousarray(array).tobytes())
    for name in stream.data.names:
        digest.update(np.ascontiguousarray(stream.data.images[name][:4]).tobytes())
    for tensor in network.state.values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
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
        collaboration=matrices,
        collaboration_rounds=rounds,
        same_domain_weight=tally.same_domain_weight(),
        bytes_up=int(tally.bytes[0]),
        bytes_down=int(tally.bytes[1]),
        seconds=float(tally.seconds),
        peak_memory_mb=peak,
    )


class _Workshop:
    """Turns descriptions into working parts; data and models are loaded once for all runs that share them."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self.data = lru_cache(maxsize=2)(self._load_data)
        self.network = lru_cache(maxsize=2)(self._load_network)

    def assemble(self, experiment: Experiment, device: torch.device) -> tuple[Federation, Stream, dict[str, Any]]:
        """Build the federation and its stream, and the settings as they turned out."""
        schedule: Schedule = experiment.method(schedules, experiment.stream)
        adapter: Adapter = experiment.method(adapters, experiment.adapter)
        aggregator: Aggregator = experiment.method(aggregators, experiment.aggregator)
        data = self.data(experiment.dataset, experiment.severity, experiment.domains, experiment.folder)
        clients = experiment.clients or schedule.default_clients()
        slots = experiment.slots or _affordable_slots(data, clients, experiment)
        stream = build(schedule, data, clients, slots, experiment.batch, experiment.seed, experiment.samples)
        model = DEFAULT_MODEL.get(experiment.dataset, "resnet8") if experiment.model == "auto" else experiment.model
        network = self.network(experiment.dataset, model, experiment.weights, len(data.classes), device)
        _try_on(network, stream, device)
        adapter.check(network, experiment.batch)
        lift = choose_lift(experiment.lift, network, adapter.init(network))
        height, width, channels = stream.shape

        def images(count: int) -> Tensor:
            return _public_images(experiment, count, device)

        server = Server(network, lift, experiment.seed, (channels, height, width), clients, images)
        settings = {
            key: getattr(experiment, key)
            for key in (
                "dataset",
                "severity",
                "domains",
                "weights",
                "adapter",
                "aggregator",
                "stream",
                "samples",
            )
        }
        settings |= {"model": model, "clients": clients, "batch": experiment.batch, "slots": slots}
        settings |= {"interval": experiment.interval, "seed": experiment.seed, "device": str(device)}
        settings |= {"lift": lift.__name__.removeprefix("by_").replace("_", " "), "sh": stream.spatial_heterogeneity}
        settings |= {"th": stream.temporal_heterogeneity, "notes": list(data.notes)}
        settings |= {m.name: p for m in (schedule, adapter, aggregator) if (p := parameters_of(m))}
        return Federation(network, adapter, aggregator, server, lift, experiment.interval), stream, settings

    def _load_data(self, dataset: str, severity: int, domains: str, folder: str | None) -> Domains:
        given = self._objects.get("dataset")
        if isinstance(given, Domains):
            return check_domains(given)
        named = {"benchmark": BENCHMARK, "extra": EXTRA, "all": NAMES}
        names = named.get(domains) or tuple(domains.split("+"))
        return load_domains(dataset, severity, names=names, folder=None if folder is None else Path(folder))

    def _load_network(self, dataset: str, model: str, weights: str, classes: int, device: torch.device) -> Network:
        given = self._objects.get("model")
        if isinstance(given, nn.Module):
            return Network(given, device)
        if ":" in model:
            module = _import_model(model)
            if weights != "auto":
                load_weights(module, Path(weights))
            return Network(module, device)
        return Network(load_model(model, dataset, classes, weights), device)


def check_domains(data: Domains) -> Domains:
    """Refuse images that are not uint8 [n, H, W, 3] in every domain, with one label each."""
    for name in data.names:
        images = data.images.get(name)
        if images is None:
            raise UserError(f"domain {name!r} has no images: give Domains.images an array for every name")
        if images.dtype != np.uint8:
            kind = "hold NaN" if _has_nan(images) else f"are {images.dtype}"
            raise UserError(f"images of domain {name!r} {kind}: give uint8 values from 0 to 255")
        if images.ndim != 4 or images.shape[-1] != 3 or len(images) != len(data.labels):
            raise UserError(
                f"images of domain {name!r} have shape {images.shape}: give [{len(data.labels)}, height, width, 3]"
            )
    if len({data.images[name].shape for name in data.names}) != 1:
        raise UserError("domains have images of different sizes: give all domains the same shape")
    return data


def _has_nan(images: NDArray[Any]) -> bool:
    return bool(np.issubdtype(images.dtype, np.floating) and np.isnan(images).any())


def _affordable_slots(data: Domains, clients: int, experiment: Experiment) -> int:
    share = len(data.labels) // (clients if experiment.samples == "disjoint" else 1)
    return max(1, min(DEFAULT_SLOTS, share // experiment.batch))


def _try_on(network: Network, stream: Stream, device: torch.device) -> None:
    """Run two images through the model, so that a misfit is told before the first round."""
    image = stream.data.images[stream.data.names[0]][:2]
    size = "x".join(map(str, stream.shape))
    with torch.no_grad():
        try:
            logits = network({}, to_input(np.asarray(image), device)).logits
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the model cannot take images of {size}: {reason}; choose a model that fits") from error
    classes = len(stream.data.classes)
    if logits.ndim != 2 or logits.shape[1] != classes:
        raise UserError(
            f"the model gives outputs of shape {list(logits.shape[1:])} and the data have {classes} classes: choose a"
            " model that fits"
        )


def _public_images(experiment: Experiment, count: int, device: torch.device) -> Tensor:
    """The first clean test images, as a probe that everybody knows."""
    name = experiment.dataset.removesuffix("-c")
    folder = None if experiment.folder is None else Path(experiment.folder)
    images = load(name, "test", folder, progress=False).images[:count]
    return to_input(np.asarray(images), device)


def _import_model(place: str) -> nn.Module:
    """Import `module:name` (from the current folder too) and call it unless it is a module already."""
    module_name, _, name = place.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"cannot import model={place}: {error}; write module:function") from error
    model = found if isinstance(found, nn.Module) else found()
    if not isinstance(model, nn.Module):
        raise UserError(f"model={place} gives a {type(model).__name__}: it must give a torch.nn.Module")
    return model


def _name_objects(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace methods, models and data given as objects by names; return (plain values, objects by key)."""
    plain, objects = dict(values), {}
    registries: dict[str, tuple[Registry[Any], type[Any]]] = {
        "adapter": (adapters, Adapter),
        "aggregator": (aggregators, Aggregator),
        "stream": (schedules, Schedule),
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
    for key, base in (("model", nn.Module), ("dataset", Domains)):
        if isinstance(plain.get(key), base):
            objects[key] = plain[key]
            plain[key] = type(plain[key]).__name__.lower()
    return plain, objects
