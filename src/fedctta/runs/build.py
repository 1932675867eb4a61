"""From names to working parts: data, model, methods and stream of one experiment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, Server, aggregators
from fedctta.core.clients import Client, Lifter, by_loop, choose_lift
from fedctta.core.network import Network
from fedctta.data.catalogue import load
from fedctta.data.corrupted import SETS, Domains, check_labels, load_domains
from fedctta.data.corruptions import BENCHMARK, EXTRA, NAMES
from fedctta.data.dense import DENSE, check_masked, load_dense
from fedctta.data.masked import AnyDomains, MaskedDomains, numbered, with_more_classes
from fedctta.data.scenes import load as load_scenes
from fedctta.engine.gpu_capacity import clients_that_fit
from fedctta.engine.lifting import fastest_lift
from fedctta.engine.rounds import Federation
from fedctta.errors import UserError, unknown
from fedctta.keys import Lift
from fedctta.machine import hardware
from fedctta.models import ARCHITECTURES
from fedctta.models.inputs import to_input
from fedctta.models.source import Source
from fedctta.models.zoo import find_weights, load_model, load_weights
from fedctta.registry import import_object, parameters_of, read_names, refuse_twice
from fedctta.runs.guards import guarded
from fedctta.runs.settings import Experiment
from fedctta.sampling import Sampler, samplers
from fedctta.streams import ABSENT, Schedule, Stream, build, schedules
from fedctta.uploads.late_uploads import Late

DEFAULT_MODEL = {"cifar10-c": "resnet8", "cifar100-c": "resnext29", "shapes-c": "resnet8-w16"}
DEFAULT_DENSE_MODEL = "unet"
DEFAULT_SLOTS = 50
LARGE = 64 * 64  # pixels per image above which fewer images pass through a model at once


class Parts(NamedTuple):
    """The parts that an experiment names, built and checked to fit together."""

    schedule: Schedule
    sampler: Sampler
    adapter: Adapter
    aggregator: Aggregator
    network: Network
    client: Client
    stream: Stream
    slots: int
    model: str
    source: Source
    lift: Lift  # how clients can be lifted: as asked, or by a loop where vmap cannot run the model

    @property
    def methods(self) -> tuple[Any, ...]:
        """Return all that has parameters."""
        return self.schedule, self.sampler, self.adapter, self.aggregator


class Builder:
    """Turns descriptions into working parts; data and models are loaded once for all runs that share them."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects = objects
        self.data = lru_cache(maxsize=2)(self._load_data)
        self.network = lru_cache(maxsize=2)(self._load_network)
        self._hashed: tuple[AnyDomains, bytes] | None = None

    def build(self, experiment: Experiment, device: torch.device) -> tuple[Federation, Stream, dict[str, Any]]:
        """Build the federation and its stream, and return the settings with all defaults resolved."""
        parts = self._parts(experiment, device)
        lift = self._choose_lift(experiment, parts)
        federation, guards = _federate(experiment, parts, lift)
        stream, data = parts.stream, parts.stream.data
        settings = asdict(experiment) | {"model": parts.model, "clients": stream.clients, "slots": parts.slots}
        settings |= {"device": str(device), "source": parts.source.told()}
        settings |= {"lift": lift.__name__.removeprefix("by_").replace("_", " "), "notes": list(stream.data.notes)}
        settings |= {"hardware": hardware(device), "torch": torch.__version__}
        settings |= {"sh": stream.spatial_heterogeneity, "th": stream.temporal_heterogeneity}
        settings |= guards
        settings["notes"] += parts.source.notes(experiment.dataset == "masked" and experiment.weights == "auto")
        del settings["parameters"]  # in full, with defaults, under each method's name
        if data.dense:
            del settings["severity"]
            settings["classes"] = list(data.classes)
        settings |= {m.name: p for m in parts.methods if (p := parameters_of(m))}
        return federation, stream, settings

    def check(self, experiment: Experiment, device: torch.device) -> Stream:
        """Refuse what `build` would refuse, without measuring anything; return the stream."""
        parts = self._parts(experiment, device)
        _federate(experiment, parts, by_loop)
        return parts.stream

    def _parts(self, experiment: Experiment, device: torch.device) -> Parts:
        schedule: Schedule = experiment.method(schedules, experiment.stream)
        sampler: Sampler = experiment.method(samplers, experiment.samples)
        adapter: Adapter = experiment.method(adapters, experiment.adapter)
        aggregator: Aggregator = experiment.method(aggregators, experiment.aggregator)
        data = self.data(*data_keys(experiment))
        model = choose_model(experiment, data)
        source = Source.of(self._weights(experiment, model))
        if isinstance(data, MaskedDomains):
            data = with_more_classes(data, source.card.get("classes", ()))
        bf16 = experiment.precision == "bf16"
        kinds = (len(data.classes), device, data.dense, bf16)
        network = self.network(experiment.dataset, model, experiment.weights, *kinds)
        data, lift = _try_on(network, data, device, experiment.lift)
        clients, slots = experiment.clients or schedule.default_clients(), self.slots(experiment)
        stream = build(
            schedule,
            data,
            clients,
            slots,
            experiment.batch,
            experiment.seed,
            sampler,
            experiment.order,
            experiment.stragglers,
            experiment.delay,
        )
        adapter.check(network, experiment.batch)
        client = adapter.init(network)
        aggregator.check(network, client.own)
        return Parts(schedule, sampler, adapter, aggregator, network, client, stream, slots, model, source, lift)

    def _choose_lift(self, experiment: Experiment, parts: Parts) -> Lifter:
        network, client, stream = parts.network, parts.client, parts.stream
        height, width, channels = stream.shape
        load = max(1, height * width // LARGE) if stream.data.dense else 1  # how many small images one image counts as
        fit = clients_that_fit(network, client, experiment.batch, (channels, height, width))
        lift = choose_lift(parts.lift, network, client, experiment.batch * load, fit)
        if parts.lift != "auto" or network.device.type != "cpu" or stream.data.dense:
            return lift
        shown = int((stream.domain != ABSENT).sum()) * experiment.batch
        shape = (channels, height, width)
        return fastest_lift(parts.adapter, network, stream.clients, experiment.batch, shape, shown)

    def _weights(self, experiment: Experiment, model: str) -> Path | None:
        """Return the file the model's weights come from, if they come from one."""
        if isinstance(self.objects.get("model"), nn.Module):
            return None
        if ":" in model:
            return None if experiment.weights == "auto" else Path(experiment.weights)
        return find_weights(model, experiment.dataset, experiment.weights)

    def slots(self, experiment: Experiment) -> int:
        """Return how many slots a domain lasts: the number asked for, or as many as there are images for."""
        if experiment.slots:
            return experiment.slots
        schedule, sampler = (
            experiment.method(schedules, experiment.stream),
            experiment.method(samplers, experiment.samples),
        )
        clients = experiment.clients or schedule.default_clients()
        return affordable_slots(sampler.share(self.data(*data_keys(experiment)).count, clients), experiment.batch)

    def hash_images(self, data: AnyDomains) -> bytes:
        """Return a hash of the names, the classes and every image; the last one is cached."""
        if self._hashed is None or self._hashed[0] is not data:
            digest = hashlib.sha256(repr((data.names, data.classes)).encode())
            for name in data.names:
                digest.update(repr(data.images[name].shape).encode())
                digest.update(np.ascontiguousarray(data.images[name]).data)
            self._hashed = data, digest.digest()
        return self._hashed[1]

    def _load_data(
        self, dataset: str, severity: int, domains: str, folder: str | None, layout: str, size: int | None
    ) -> AnyDomains:
        given = self.objects.get("dataset")
        if isinstance(given, Domains):
            return check_domains(given)
        if isinstance(given, MaskedDomains):
            return check_masked(given)
        if dataset != "masked" and (layout, size) != ("auto", None):
            raise UserError(f"layout and size are for dataset=masked and have no effect on {dataset}: drop them")
        place = None if folder is None else Path(folder)
        if dataset in DENSE:
            return load_dense(dataset, domains, place, severity=severity, layout=layout, size=size)
        if dataset not in SETS:
            raise unknown("data set to run on", dataset, {**SETS, **DENSE})
        named = {"benchmark": BENCHMARK, "extra": EXTRA, "all": NAMES}
        names = named.get(domains) or read_names(domains, "domains")
        return load_domains(dataset, severity, names=names, folder=place)

    def _load_network(
        self,
        dataset: str,
        model: str,
        weights: str,
        classes: int,
        device: torch.device,
        dense: bool,
        bf16: bool = False,
    ) -> Network:
        given = self.objects.get("model")
        if isinstance(given, nn.Module):
            return Network(given, device, dense, bf16)
        if ":" in model:
            module = import_model(model)
            if weights != "auto":
                load_weights(module, Path(weights))
            return Network(module, device, dense, bf16)
        return Network(load_model(model, dataset, classes, weights), device, dense, bf16)


def _federate(experiment: Experiment, parts: Parts, lift: Lifter) -> tuple[Federation, dict[str, Any]]:
    """Put the parts together, with the protection against liars and for privacy that the experiment asks for."""
    network, stream = parts.network, parts.stream
    height, width, channels = stream.shape

    def images(count: int) -> Tensor:
        return public_images(experiment, count, network.device)

    server = Server(network, lift, experiment.seed, (channels, height, width), stream.clients, images)
    late = Late(experiment.stale, experiment.decay)
    graphs = choose_graphs(parts.lift, network.device)
    federation = Federation(
        parts.adapter,
        parts.aggregator,
        server,
        experiment.interval,
        graphs,
        (late,),
        predict=experiment.predict,
        batch=experiment.batch,
    )
    return guarded(federation, experiment, len(stream))


def choose_graphs(how: Lift, device: torch.device) -> Literal["never", "auto", "always"]:
    """Say whether rounds are replayed as CUDA graphs: on a GPU wherever possible, unless another lifting is asked."""
    if how == "graph" and device.type != "cuda":
        raise UserError("lift=graph needs a CUDA GPU: use lift=auto")
    return "always" if how == "graph" else "auto" if how == "auto" and device.type == "cuda" else "never"


def choose_model(experiment: Experiment, data: AnyDomains) -> str:
    """Return the name of the model: the data's usual one for "auto"; refuse one that predicts something else."""
    if experiment.model == "auto":
        return DEFAULT_DENSE_MODEL if data.dense else DEFAULT_MODEL.get(experiment.dataset, "resnet8")
    known = ARCHITECTURES.get(experiment.model)
    if known is not None and known.dense != data.dense:
        what = "a class for every pixel" if data.dense else "one class an image"
        fit = " or ".join(name for name, model in ARCHITECTURES.items() if model.dense == data.dense)
        raise UserError(f"model={experiment.model} does not fit data with {what}: use model={fit}")
    return experiment.model


def check_domains(data: Domains) -> Domains:
    """Refuse images that are not uint8 [n, H, W, 3] in every domain, with one label each, of the known classes."""
    refuse_twice(data.names, "Domains.names")
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
    check_labels(data.labels, data.classes, "Domains.labels")
    return data


def _has_nan(images: NDArray[Any]) -> bool:
    return bool(np.issubdtype(images.dtype, np.floating) and np.isnan(images).any())


def data_keys(experiment: Experiment) -> tuple[Any, ...]:
    """Return the arguments of `Builder.data`."""
    return tuple(getattr(experiment, key) for key in ("dataset", "severity", "domains", "folder", "layout", "size"))


def affordable_slots(images: int, batch: int) -> int:
    """Return for how many slots per domain a client's images suffice, at most the papers' 50."""
    return max(1, min(DEFAULT_SLOTS, images // batch))


def _try_on(network: Network, data: AnyDomains, device: torch.device, how: Lift) -> tuple[AnyDomains, Lift]:
    """Run two images through the model, so that a model that does not fit is reported before the first round.

    Return the data, with the model's number of classes if theirs are only numbers, and how to lift the model.
    """
    image = data.images[data.names[0]][:2]
    shape = image.shape[1:]
    x = to_input(np.asarray(image), device)
    size = "x".join(map(str, shape))
    with torch.no_grad():
        try:
            logits = network({}, x).logits
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"the model cannot take images of {size}: {reason}; choose a model that fits") from error
    if network.dense and len(logits) != len(image) * shape[0] * shape[1]:
        raise UserError(f"the model does not predict every pixel of images of {size}: choose one that does, as unet")
    if isinstance(data, MaskedDomains) and logits.ndim == 2:
        data = with_more_classes(data, numbered(logits.shape[1]))
    classes = len(data.classes)
    if logits.ndim != 2 or logits.shape[1] != classes:
        raise UserError(
            f"the model gives outputs of shape {list(logits.shape[1:])} and the data have {classes} classes: choose a"
            " model that fits"
        )
    return data, _possible_lift(network, x, how)


def _possible_lift(network: Network, x: Tensor, how: Lift) -> Lift:
    """Return `how`, or a loop in place of "auto" where vmap cannot run the model (it may branch on values)."""
    if how == "loop":
        return how
    try:
        with torch.no_grad():
            torch.func.vmap(lambda images: network({}, images).logits)(x[None])
    except RuntimeError as error:
        if how != "auto":
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"lift={how} cannot run this model: {reason}; use lift=loop") from error
        return "loop"
    return how


def _no_images(experiment: Experiment) -> UserError:
    """Say which method asks for images that are not there, and what to do."""
    if experiment.method(adapters, experiment.adapter).source_images:
        kind, name, remedy = "adapter", experiment.adapter, adapters.classes()[experiment.adapter].without_images
    else:
        kind, name = "aggregator", experiment.aggregator
        remedy = aggregators.classes()[name].without_images
    return UserError(
        f"dataset={experiment.dataset} has no images that all know, which {kind} {name} asks for: use"
        f"{f' {name}.{remedy} or' if remedy else ''} another {kind}"
    )


def public_images(experiment: Experiment, count: int, device: torch.device) -> Tensor:
    """The first clean test images, as a probe that all clients know."""
    if experiment.dataset == "scenes":
        return to_input(np.asarray(load_scenes("test").images[:count]), device)
    if experiment.dataset in DENSE:
        raise _no_images(experiment)
    name = experiment.dataset.removesuffix("-c")
    folder = None if experiment.folder is None else Path(experiment.folder)
    images = load(name, "test", folder, progress=False).images[:count]
    return to_input(np.asarray(images), device)


def import_model(place: str) -> nn.Module:
    """Import `module:name` (from the current folder too) and call it unless it is a module already."""
    module_name, _, name = place.partition(":")
    try:
        found = import_object(module_name, name)
    except Exception as error:  # whatever the user's module raises
        raise UserError(f"cannot import model={place}: {_in_one_line(error)}; write module:function") from error
    try:
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:
        raise UserError(
            f"model={place} cannot be called: {_in_one_line(error)}; name a function without arguments"
        ) from error
    if not isinstance(model, nn.Module):
        raise UserError(f"model={place} gives a {type(model).__name__}: it must give a torch.nn.Module")
    return model


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
