"""From the names of an experiment to a run: its parts, the federation they make, and what its record says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, Server, aggregators
from fedctta.core.clients import Client, Lifter, by_loop, choose_lift
from fedctta.core.gpu_kernels import find_obstacle
from fedctta.core.network import Network
from fedctta.core.storage import choose_storage
from fedctta.data.corrupted import SETS
from fedctta.data.domains import Domains
from fedctta.data.masked import AnyDomains, MaskedDomains, with_more_classes
from fedctta.data.source_images import source_note
from fedctta.engine.gpu_capacity import clients_that_fit
from fedctta.engine.lifting import fastest_lift
from fedctta.engine.rounds import Federation
from fedctta.engine.tally import KEPT_MATRIX_BYTES, count_kept
from fedctta.errors import UserError
from fedctta.keys import Lift
from fedctta.machine import hardware, total_memory
from fedctta.models.inputs import read_batch
from fedctta.models.source import Source
from fedctta.models.try_on import try_on
from fedctta.registry import parameters_of
from fedctta.runs.cache import Cache
from fedctta.runs.datasets import public_images
from fedctta.runs.guards import describe_guards, guard, shares_nothing
from fedctta.runs.idle_keys import refuse_idle_keys
from fedctta.runs.own_data import asks_for_images, refuse_other_inputs
from fedctta.runs.settings import Experiment
from fedctta.runs.source_models import choose_model, fit_classes, notes_on_training, possible_lift
from fedctta.sampling import Sampler, samplers
from fedctta.streams import ABSENT, Schedule, Stream, build, schedules
from fedctta.streams.dealing import slots_of_all
from fedctta.uploads.attacks import choose_liars
from fedctta.uploads.late_uploads import Late

DEFAULT_SLOTS = 50
LARGE = 64 * 64  # pixels per image above which fewer images pass through a model at once
FULL = 25 * LARGE  # pixels of a client's batch of such images from which on a CPU is fastest with one client at a time


class Methods(NamedTuple):
    """All that an experiment names and that has parameters."""

    schedule: Schedule
    sampler: Sampler
    adapter: Adapter
    aggregator: Aggregator

    def count_clients(self, experiment: Experiment) -> int:
        """Return how many clients there are: the number asked for, or the schedule's own."""
        return experiment.clients or self.schedule.default_clients()

    def fit(self, experiment: Experiment, data: AnyDomains) -> Methods:
        """Return the methods with a schedule that fits the number of clients and of domains."""
        return self._replace(schedule=self.schedule.fit(self.count_clients(experiment), len(data.names)))


class Parts(NamedTuple):
    """The parts that an experiment names, checked to fit together."""

    methods: Methods
    network: Network
    client: Client  # before its first batch, without what it learns from images of the source
    stream: Stream
    slots: int
    model: str
    source: Source
    device: torch.device
    lift: Lift  # how clients can be lifted: as asked, or by a loop where vmap cannot run the model


def choose_methods(experiment: Experiment) -> Methods:
    """Make the four methods with the parameters given for them."""
    return Methods(
        experiment.method(schedules, experiment.stream),
        experiment.method(samplers, experiment.samples),
        experiment.method(adapters, experiment.adapter),
        experiment.method(aggregators, experiment.aggregator),
    )


def choose_parts(experiment: Experiment, device: torch.device, cache: Cache) -> Parts:
    """Load data and model, make the methods and lay out the stream; refuse what does not fit together."""
    methods = choose_methods(experiment)
    data = cache.data(experiment)
    model = choose_model(experiment, data)
    source = cache.source(experiment, model)
    if isinstance(data, MaskedDomains):
        data = with_more_classes(data, source.card.get("classes", ()))
    network = cache.network(experiment, model, data, device)
    refuse_precision(network)
    x = read_batch(np.asarray(data.images[data.names[0]][:2]), device)
    data = fit_classes(data, x, try_on(network, x))
    if methods.adapter.descends:
        network.try_gradients(x)
    methods = methods.fit(experiment, data)
    lift = possible_lift(network, x, experiment.lift, methods.adapter.descends)
    refuse_large_rounds(methods.count_clients(experiment), experiment.batch, x[0].nbytes, total_memory(device))
    stream, slots = choose_stream(experiment, methods, data), choose_slots(experiment, methods, data)
    refuse_idle_keys(experiment, methods.aggregator.communicates, stream)
    refuse_other_inputs(stream, methods.adapter, methods.aggregator)
    methods.adapter.check(network, experiment.batch)
    client = methods.adapter.init(network)
    methods.aggregator.require_partner(methods.adapter.name, client.own)
    methods.aggregator.check(network, client.own)
    if experiment.storage != "float32" and choose_storage(network, client) is None:
        raise UserError(
            f"storage={experiment.storage} has no effect on adapter {methods.adapter.name!r}, whose clients own no"
            " kernels or matrices of the model: drop it, or use another adapter"
        )
    return Parts(methods, network, client, stream, slots, model, source, device, lift)


def refuse_precision(network: Network) -> None:
    """Refuse a model in another precision than that of images and methods."""
    if network.dtype != torch.float32:
        found = str(network.dtype).removeprefix("torch.")
        raise UserError(f"a run computes in float32 and the model is in {found}: call .float() on it")


def refuse_large_rounds(clients: int, batch: int, each: int, memory: int) -> None:
    """Refuse rounds whose images alone, `each` bytes large, take more than the memory that there is."""
    if clients * batch * each > memory:
        raise UserError(
            f"one round has {clients * batch:,} images, which take {clients * batch * each / 1e9:,.0f} GB of"
            f" {memory / 1e9:,.0f} GB of memory: use fewer clients or a smaller batch"
        )


def choose_slots(experiment: Experiment, methods: Methods, data: AnyDomains) -> int:
    """Return how many slots a domain lasts: the number asked for, or as many as there are images for."""
    if experiment.slots:
        return experiment.slots
    if isinstance(data, Domains) and shows_everything(experiment):
        return slots_of_all(data, methods.sampler, methods.count_clients(experiment), experiment.batch)
    return affordable_slots(methods.sampler.share(data.count, methods.count_clients(experiment)), experiment.batch)


def shows_everything(experiment: Experiment) -> bool:
    """Whether every image is shown: data of one's own, if no number of slots is asked for."""
    return not experiment.slots and experiment.dataset not in SETS


def affordable_slots(images: int, batch: int) -> int:
    """Return for how many slots per domain a client's images suffice, at most the papers' 50."""
    return max(1, min(DEFAULT_SLOTS, images // batch))


def choose_stream(experiment: Experiment, methods: Methods, data: AnyDomains) -> Stream:
    """Lay out the data: which images every client sees in every slot; those of liars count for nothing."""
    clients = methods.count_clients(experiment)
    stream = build(
        methods.fit(experiment, data).schedule,
        data,
        clients,
        choose_slots(experiment, methods, data),
        experiment.batch,
        experiment.seed,
        methods.sampler,
        experiment.order,
        experiment.stragglers,
        experiment.delay,
        shows_everything(experiment),
    )
    return stream.without(choose_liars(clients, experiment.liars, experiment.seed)) if experiment.liars else stream


def choose_lifter(experiment: Experiment, parts: Parts) -> Lifter:
    """Return how clients are lifted in the whole run; on a CPU this may be measured."""
    network, client, stream = parts.network, parts.client, parts.stream
    shape = stream.input_shape
    load = max(1, shape[1] * shape[2] // LARGE) if stream.data.dense else 1  # how many small images one counts as
    fit = clients_that_fit(network, client, experiment.batch, shape)
    if parts.lift != "auto" or network.device.type != "cpu" or stream.data.dense:
        return choose_lift(parts.lift, network, client, experiment.batch * load, fit)
    if stream.data.pictures and (pixels := shape[1] * shape[2]) > LARGE and experiment.batch * pixels >= FULL:
        return by_loop
    shown = int((stream.domain != ABSENT).sum()) * experiment.batch
    return fastest_lift(parts.methods.adapter, network, stream.clients, experiment.batch, shape, shown)


def federate(experiment: Experiment, parts: Parts, lift: Lifter | None = None) -> Federation:
    """Put the parts together, with the protection against liars and for privacy that the experiment asks for."""
    network, stream, lift = parts.network, parts.stream, lift or choose_lifter(experiment, parts)
    storage = None if experiment.storage == "float32" else choose_storage(network, parts.client)
    lift = lift if storage is None else storage.lift(lift)
    images = partial(public_images, experiment, stream.data, device=network.device)
    federation = Federation(
        parts.methods.adapter,
        parts.methods.aggregator,
        Server(network, lift, experiment.seed, stream.input_shape, stream.clients, images),
        experiment.interval,
        choose_graphs(parts.lift, network.device),
        (Late(experiment.stale, experiment.decay, parts.methods.aggregator.cumulative),),
        predict=experiment.predict,
        batch=experiment.batch,
        storage=storage,
    )
    return guard(_watched(federation, experiment), experiment)


def _watched(federation: Federation, experiment: Experiment) -> Federation:
    """Return a federation whose rounds can be watched: on the host, and for those who adapt in each."""
    if not experiment.check:
        return federation
    if federation.graphs == "always":
        raise UserError("lift=graph cannot replay rounds with check: use lift=auto")
    return replace(federation, graphs="never", ahead=experiment.guard == "off")


def check_parts(experiment: Experiment, device: torch.device, cache: Cache) -> Parts:
    """Refuse what a run would refuse, without measuring anything; return its parts."""
    parts = choose_parts(experiment, device, cache)
    federate(experiment, parts, by_loop)
    return parts


def choose_graphs(how: Lift, device: torch.device) -> Literal["never", "auto", "always"]:
    """Say whether rounds are replayed as CUDA graphs: on a GPU wherever possible, unless another lifting is asked."""
    if how == "graph" and device.type != "cuda":
        raise UserError("lift=graph needs a CUDA GPU: use lift=auto")
    return "always" if how == "graph" else "auto" if how == "auto" and device.type == "cuda" else "never"


def _notes(experiment: Experiment, parts: Parts) -> Iterator[str]:
    """Yield what a reader of the results should know."""
    stream = parts.stream
    yield from stream.data.notes
    if isinstance(stream.data, Domains) and experiment.dataset not in SETS:
        yield from stream.notes
    if experiment.source_images is not None and asks_for_images(experiment):
        yield source_note(experiment.source_images, stream.data)
    yield from parts.source.notes(experiment.dataset == "masked" and experiment.weights == "auto")
    yield from notes_on_training(experiment, parts.source)
    if experiment.liars:
        told = f"{experiment.liars} of {stream.clients} clients lie"
        yield f"{told}: accuracy and its like are those of the honest ones, in all tables and figures"
    if shares_nothing(experiment, parts.methods.aggregator):
        yield f"batch={experiment.batch} is below min_batch={experiment.min_batch}: nobody shares anything"
    if parts.methods.aggregator.communicates and not count_kept(stream.clients):
        yield f"W is not kept: that of {stream.clients:,} clients is larger than {KEPT_MATRIX_BYTES // 2**20} MiB"
    if experiment.lift == "auto" and parts.lift == "loop":
        yield "clients are run one after another, which is slower: torch's vmap cannot run this model"
    if parts.device.type == "cpu" and experiment.precision != "float32":
        yield f"precision={experiment.precision} is for GPUs: computed in float32 on a CPU"
    if parts.device.type == "cuda" and (obstacle := find_obstacle()):
        yield f"plain torch is used in place of kernels, which is slower: Triton cannot run them ({obstacle})"


def resolve(experiment: Experiment, parts: Parts) -> dict[str, Any]:
    """Return what was asked with all defaults resolved: equal for two wordings of one experiment."""
    left_out = {"parameters"}  # in full under the methods' names
    if experiment.dataset not in SETS:  # only corrupted images have a severity
        left_out.add("severity")
    if experiment.storage == "float32":  # records from before there was a choice do not say it
        left_out.add("storage")
    return {
        **{key: value for key, value in asdict(experiment).items() if key not in left_out},
        "model": parts.model,
        "clients": parts.stream.clients,
        "slots": parts.slots,
        "device": str(parts.device),
        "lift": parts.lift,
        **describe_parameters(parts.methods),
    }


def describe(experiment: Experiment, parts: Parts, federation: Federation, replayed: int = 0) -> dict[str, Any]:
    """Return the settings with all defaults resolved, for the record; `replayed` rounds were CUDA graphs."""
    stream, data, device = parts.stream, parts.stream.data, parts.device
    lift = federation.server.lift.__name__.removeprefix("by_").replace("_", " ")
    return {
        **resolve(experiment, parts),
        "source": parts.source.told(),
        "lift": lift + (f", {replayed} of {len(stream)} rounds as a CUDA graph" if replayed else ""),
        "notes": list(_notes(experiment, parts)),
        "hardware": hardware(device),
        "torch": torch.__version__,
        "sh": stream.spatial_heterogeneity,
        "th": stream.temporal_heterogeneity,
        **describe_guards(federation, experiment, len(stream)),
        **({"classes": list(data.classes)} if data.dense else {}),
    }


def describe_parameters(methods: Methods) -> dict[str, dict[str, Any]]:
    """Return the parameters of all methods by name; a client and a server method may share theirs."""
    found: dict[str, dict[str, Any]] = {}
    for method in methods:
        if values := parameters_of(method):
            found.setdefault(method.name, {}).update(values)
    return found
