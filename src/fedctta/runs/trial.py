"""One experiment, from its description to its record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import fedctta
from fedctta.core.gpu_memory import release_memory
from fedctta.core.model_code import hash_code
from fedctta.core.tensors import read_bytes
from fedctta.data.domains import Domains
from fedctta.engine.health import HealthWatch
from fedctta.engine.retention import Retention
from fedctta.engine.rounds import Federation
from fedctta.engine.simulation import simulate
from fedctta.engine.tally import Tally, count_kept
from fedctta.errors import NotFinite, UserError
from fedctta.machine import arithmetic, choose_device, enough_memory, peak_memory_mb, reset_peak_memory
from fedctta.registry import defaults, import_object, parameters_of
from fedctta.results.records import Record
from fedctta.runs.build import Parts, check_parts, choose_parts, describe, federate, resolve
from fedctta.runs.cache import Cache
from fedctta.runs.own_data import hash_source_images
from fedctta.runs.settings import Experiment, hash_words
from fedctta.streams import Stream

FLOWER = "fedctta.fleet.simulation.engine"  # an extra, which imports this folder: loaded by name when it is asked for

# settings whose values can make numbers overflow
_SPOILS = ("precision", "robust", "cap", "clip", "trim", "liars", "lie", "noise", "epsilon", "decay")


def run_one(
    experiment: Experiment,
    cache: Cache,
    folder: Path | None,
    resume: bool,
    watch: Callable[[int], Callable[[int, Tally], None]],
) -> Record:
    """Play one experiment; save checkpoints while it runs, and its record when it is done."""
    device = choose_device(experiment.device)
    parts = choose_parts(experiment, device, cache)
    federation = federate(experiment, parts)
    place = checkpoint = None
    identity = ""
    if folder is not None:
        identity = _identity(experiment, parts, cache)
        place = _place(experiment, identity, folder)
        checkpoint = place.with_suffix(".checkpoint")
        if resume and place.exists():
            return Record.load(place)
        if not resume:
            checkpoint.unlink(missing_ok=True)
    try:
        record = _play(experiment, parts, federation, checkpoint, identity, bool(cache.objects), watch)
    finally:
        release_memory(device)
    if place is not None and checkpoint is not None:
        record.save(place)
        checkpoint.unlink(missing_ok=True)
    return record


def _play(
    experiment: Experiment,
    parts: Parts,
    federation: Federation,
    checkpoint: Path | None,
    identity: str,
    objects: bool,
    watch: Callable[[int], Callable[[int, Tally], None]],
) -> Record:
    """Play the stream and return what is kept of it; all that a GPU holds for it is gone on return."""
    stream, device = parts.stream, parts.device
    reset_peak_memory(device)
    retention = Retention(stream, experiment.retention, experiment.seed) if experiment.retention else None
    health = HealthWatch(federation, len(stream), experiment.check, experiment.guard) if experiment.check else None
    with enough_memory(), arithmetic(experiment.precision), saying_what_is_unusual(experiment, federation):
        on_round = watch(len(stream))
        if experiment.engine == "flower":
            simulate_on_flower = import_object(FLOWER, "simulate_on_flower")
            tally = simulate_on_flower(experiment, stream, objects, on_round)
        else:
            tally = simulate(
                federation,
                stream,
                checkpoint=checkpoint,
                fingerprint=identity,
                on_round=on_round,
                retention=retention,
                health=health,
            )
    settings = describe(experiment, parts, federation, tally.replayed)
    record = _record(settings, stream, tally, peak_memory_mb(device), retention, health)
    return replace(record, origin={} if objects else describe_origin(experiment))


def describe_origin(experiment: Experiment) -> dict[str, Any]:
    """Say which experiment a record is of, which version made it, and when."""
    asked = experiment.anywhere
    made = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"fingerprint": asked.fingerprint, "words": asked.words, "version": fedctta.__version__, "made": made}


@contextmanager
def saying_what_is_unusual(experiment: Experiment, federation: Federation) -> Iterator[None]:
    """Add possible reasons to the error that predictions are not finite: values that differ from the defaults."""
    try:
        yield
    except NotFinite as error:
        usual = defaults(Experiment)
        changed = {key: getattr(experiment, key) for key in _SPOILS if getattr(experiment, key) != usual[key]}
        for method in (federation.adapter, federation.aggregator):
            known, own = defaults(type(method)), parameters_of(method)
            changed |= {f"{method.name}.{key}": value for key, value in own.items() if value != known.get(key)}
        words = ", ".join(f"{key}={value}" for key, value in changed.items())
        first = f"take {words} nearer to the defaults, or " if words else ""
        raise UserError(f"{error}: {first}check the model and its weights") from error


def check(experiment: Experiment, cache: Cache) -> str:
    """Refuse what `run_one` would refuse, without playing: a sweep then fails before its first run.

    A hash of what is asked, with all defaults resolved, is returned.
    """
    parts = check_parts(experiment, choose_device(experiment.device), cache)
    if experiment.engine == "flower":
        import_object(FLOWER, "check")(experiment, parts.stream, bool(cache.objects))
    digest = hashlib.sha256(hash_words(resolve(experiment, parts)).encode())
    for array in (parts.stream.domain, parts.stream.samples):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def kept(experiment: Experiment, cache: Cache, folder: Path) -> Record | None:
    """Return the record of an experiment played before, if the folder has it."""
    parts = check_parts(experiment, choose_device(experiment.device), cache)
    place = _place(experiment, _identity(experiment, parts, cache), folder)
    return Record.load(place) if place.exists() else None


def _place(experiment: Experiment, identity: str, folder: Path) -> Path:
    name = f"{experiment.stream}-{experiment.adapter}-{experiment.aggregator}-seed{experiment.seed}-{identity}"
    return folder / "runs" / f"{name}.safetensors"


def _identity(experiment: Experiment, parts: Parts, cache: Cache) -> str:
    """A short hash of all that decides the numbers: version, description, model, schedule, samples, images, labels.

    It includes the files that the adapter reads.
    """
    digest = hashlib.sha256(f"{fedctta.__version__} {experiment.fingerprint}".encode())
    stream, network = parts.stream, parts.network
    data = stream.data
    shared = isinstance(data, Domains) and data.shared
    labels = [data.labels_of(name) for name in (data.names[:1] if shared else data.names)]
    for array in (stream.domain, stream.samples, *labels):
        digest.update(np.ascontiguousarray(array).data)
    digest.update(cache.hash_images(data))
    digest.update(hash_code(network.module, experiment.model))
    for tensor in network.state.values():
        digest.update(read_bytes(tensor))
    for path in parts.methods.adapter.reads(network):
        digest.update(path.read_bytes())
    digest.update(hash_source_images(experiment))
    return digest.hexdigest()[:12]


def _record(
    settings: Mapping[str, Any],
    stream: Stream,
    tally: Tally,
    peak: float,
    retention: Retention | None,
    health: HealthWatch | None,
) -> Record:
    """Return what is kept of a run that is done."""
    matrices, rounds = tally.matrices.cpu().numpy(), tally.kept_rounds
    if not len(rounds) and count_kept(stream.clients):  # nobody collaborates: the identity, once
        matrices, rounds = np.eye(stream.clients, dtype=np.float32)[None], np.zeros(1, np.int64)
    record = Record(
        settings=settings,
        domains=stream.data.names,
        seen=tally.labelled(),
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
        shown=np.zeros((0, 0), np.int32) if stream.data.dense or not tally.partial else tally.seen(),
    )
    if retention is not None:
        record = replace(record, retained=retention.accuracy.numpy(), retained_rounds=retention.rounds)
    if health is not None:
        record = replace(
            record,
            estimate=health.noted["accuracy"].numpy(),
            source_estimate=health.noted["source_accuracy"].numpy(),
            disagreement=health.noted["disagreement"].numpy(),
            top_share=health.noted["top_share"].numpy(),
            answers=health.answers.numpy(),
            alarms=np.array(health.alarms, np.int64).reshape(-1, 2),
        )
    if stream.data.dense:
        record = replace(record, pictures=stream.pictures(tally.masks.cpu().numpy()))
    return record
