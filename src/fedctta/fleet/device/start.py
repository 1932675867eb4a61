"""From the options of a command to a running device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import fedctta
from fedctta.adapters import Adapter, adapters
from fedctta.core.clients import Client
from fedctta.core.randomness import numbered
from fedctta.engine.first_clients import first_client
from fedctta.errors import UserError, either
from fedctta.fleet.device.device import Device, stoppable
from fedctta.fleet.device.device_state import DeviceState, StreamPosition
from fedctta.fleet.device.equipment import Equipment, equip, images_from, seed_of
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.health_report import describe_health, note_health
from fedctta.fleet.device.predictions import open_predictions, sole_writer
from fedctta.fleet.device.private_uploads import Accountant, PrivateUploads
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.socket_server import SocketServer
from fedctta.fleet.device.sources import open_source, paced
from fedctta.fleet.methods import choose_methods, refuse_lockstep
from fedctta.keys import UNWAITING
from fedctta.machine import arithmetic, choose_device
from fedctta.online.adaptation import Adaptation
from fedctta.online.saved import identity
from fedctta.runs.guards import covers
from fedctta.uploads.privacy import Noise, check_budget, noise_for

log = logging.getLogger("fedctta.fleet")


LEAST = {"batch": 1, "min_batch": 1, "save_every": 0, "pace": 0, "patience": 0, "check": 0, "window": 2}
"""The least value of options."""


@dataclass(frozen=True)
class Settings:
    """What a device is told; the command's options say what each means."""

    model: str
    data: str
    state: Path
    weights: str = "auto"
    adapter: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 10
    patience: float = 1.0
    pace: float = 0.0
    out: Path | None = None
    name: str = "device-0"
    socket: Path | None = None
    lockstep: bool = False
    min_batch: int = 2
    save_every: int = 0
    classes: str = ""
    source_images: Path | None = None
    compute: str = "auto"
    guard: Literal["reset", "freeze", "off"] | None = None
    check: int = 10
    window: int = 16
    epsilon: float | None = None
    delta: float = 1e-5
    budget: float | None = None

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if isinstance(value, float) and not isfinite(value):
                raise UserError(f"{_option(key)} {value} must be a finite number")
        if self.budget is not None and (self.epsilon is None or self.budget < self.epsilon):
            raise UserError(
                f"--budget {self.budget} limits what uploads of --epsilon add up to: give a smaller --epsilon"
            )
        if self.epsilon is not None:
            check_budget(self.epsilon, self.delta)
            if self.lockstep:
                raise UserError("--epsilon in lock-step would send an interrupted batch twice: drop --lockstep")
            if self.guard not in (None, "off"):
                raise UserError(
                    f"--guard {self.guard} lets images decide what is sent, which noise does not cover: drop it"
                )
        elif self.delta != type(self).delta:
            raise UserError(f"--delta {self.delta} has no effect without --epsilon: add it, or drop --delta")
        for key, least in LEAST.items():
            if getattr(self, key) < least:
                raise UserError(f"{_option(key)} {getattr(self, key)} must be at least {least}")
        if self.guard in ("reset", "freeze") and not self.check:
            raise UserError(f"--guard {self.guard} acts on what checks find and --check 0 asks for none: drop one")
        if not self.name or len(self.name) > 100 or not self.name.isprintable():
            raise UserError("--name must be printable and of 1 to 100 letters")
        if self.lockstep and self.socket is None:
            raise UserError("--lockstep waits for a server: add --socket PATH, where its ClientApp finds the device")
        for key in ("epsilon", "min_batch"):
            if self.socket is None and (value := getattr(self, key)) != getattr(type(self), key):
                raise UserError(f"{_option(key)} {value} has no effect without --socket, as nothing is sent: drop it")
        if self.patience != type(self).patience and not self.data.startswith("watch:"):
            raise UserError(f"--patience {self.patience} has no effect without --data watch:PATH: drop it")

    @property
    def guard_or_usual(self) -> Literal["reset", "freeze", "off"]:
        """What an alarm does: by default a reset, but nothing in lock-step, which is to give what a simulation does.

        Nor with noise: what a device sends must not depend on what it finds out about its images.
        """
        return self.guard or ("off" if self.lockstep or self.epsilon is not None else "reset")


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


class _Origin(NamedTuple):
    """What a device begins from: the data set of a simulated stream, a seed and number, and images of the source."""

    dataset: str
    seed: int
    number: int
    images: Callable[[int], Tensor]


def run_device(settings: Settings) -> StreamPosition:
    """Run a device until its data end or it is asked to stop; return its place.

    A device that is refused before its first prediction leaves no folder behind.
    """
    compute = choose_device(settings.compute)
    chosen = _choose_adapter(settings)
    origin = _find_origin(settings, chosen or UNWAITING, compute)
    equipment = _equip(settings, chosen, origin.dataset, compute)
    made_by = identity(equipment.network, equipment.adapter)
    with ExitStack() as open_things, torch.no_grad(), arithmetic("float32"):
        keep = open_things.enter_context(DeviceState(settings.state, made_by, settings.save_every, settings.data))
        private = _private_uploads(settings, equipment.adapter)
        adaptation, place = _take_up(settings, equipment, origin, keep)
        out = settings.out or settings.state / "predictions.jsonl"
        open_things.enter_context(sole_writer(out))
        predictions = open_things.enter_context(open_predictions(out))
        done = predictions.done()
        if keep.fresh and done.images and settings.out is not None:
            raise UserError(f"{out} has rows of another --state: choose another --out, or give that --state")
        if done.images > place.images:
            adaptation.client = equipment.adapter.after_gap(_rename(adaptation.client, done.images))
        place = replace(place, images=done.images, batches=max(place.batches, done.batches))
        done = done._replace(size=place.size)
        source = paced(open_source(settings.data, settings.batch, done, settings.patience), settings.pace)
        handover = Handover(Snapshot(adaptation.client, None, place.batches))
        if settings.socket is not None:
            handler = _handler(settings, equipment, handover, place, adaptation, private)
            open_things.enter_context(SocketServer(settings.socket, handler.answer))
        device = Device(equipment, adaptation, place, predictions, keep, handover, settings.lockstep)
        log.info("%s: %s with %s, after %d batches", settings.name, settings.model, equipment.adapter, place.batches)
        with stoppable() as stop:
            device.walk(source, stop)
        place = device.place
        log.info("%s: %d batches, %d images; predictions: %s", settings.name, place.batches, place.images, out)
        log.info("%s: %s", settings.name, describe_health(adaptation))
        if private is not None:
            log.info("%s: %s", settings.name, private.accountant)
    return place


def _choose_adapter(settings: Settings) -> str | None:
    """Return the adapter's name; None where it follows from the model."""
    if not settings.adapter and settings.lockstep:
        return str(choose_methods({}, lockstep=True)["adapter"])
    return settings.adapter or (UNWAITING if settings.parameters else None)  # whose parameters they are


def _find_origin(settings: Settings, adapter: str, compute: torch.device) -> _Origin:
    images = images_from(settings.source_images, adapter, compute)
    if not settings.data.startswith("stream:"):
        return _Origin("", seed_of(settings.name), 0, images)
    from fedctta.fleet.simulation.simulated import parse_stream
    from fedctta.runs.cache import Cache

    experiment, number = parse_stream(settings.data.removeprefix("stream:"), settings.batch)
    if settings.source_images is None:
        images = partial(Cache().public_images, replace(experiment, adapter=adapter), device=compute)
    return _Origin(experiment.dataset, experiment.seed, number, images)


def _equip(settings: Settings, adapter: str | None, dataset: str, compute: torch.device) -> Equipment:
    """Make model and method, with the noise of a budget if there is one."""
    equipment = equip(
        settings.model,
        settings.weights,
        adapter,
        settings.batch if settings.lockstep else max(2, settings.batch),  # single images are seen among the last ones
        parameters=settings.parameters,
        classes=settings.classes,
        dataset=dataset,
        device=compute,
    )
    if settings.source_images is not None and not equipment.adapter.source_images:
        raise UserError(
            f"--source-images has no effect on adapter {equipment.adapter.name!r}, which needs none: drop it"
        )
    if settings.epsilon is not None:
        equipment = replace(equipment, adapter=add_noise(equipment, settings))
    if settings.lockstep:
        refuse_lockstep(equipment.adapter)
    return equipment


def _take_up(
    settings: Settings, equipment: Equipment, origin: _Origin, keep: DeviceState
) -> tuple[Adaptation, StreamPosition]:
    """Return the adaptation as it was saved, or with its first client, and its place."""
    adaptation = _adaptation(settings, equipment)
    studied = settings.batch if settings.batch > 1 else settings.window  # single images are adapted to together
    network, adapter = equipment.network, equipment.adapter
    adaptation.take_up(first_client(network, adapter, origin.images, studied, origin.seed, origin.number))
    place = keep.load(adaptation)
    adaptation.frozen = adaptation.frozen and adaptation.watchman.guard == "freeze"
    return adaptation, place


def add_noise(equipment: Equipment, settings: Settings) -> Adapter:
    """Return the method with the noise of a budget, or as it is if its uploads can have it; refuse any other."""
    network, adapter = equipment.network, equipment.adapter
    assert settings.epsilon is not None
    if (noisy := adapter.with_noise(noise_for(settings.epsilon, settings.delta))) is not None:
        if settings.budget is not None:
            raise UserError(f"--budget has no effect on {adapter.name!r}, which keeps to --epsilon for ever: drop it")
        return noisy
    if not covers(network, adapter):
        able = [name for name, usual in adapters.usual().items() if covers(network, usual)]
        raise UserError(
            f"--epsilon has no effect on adapter {adapter.name!r}, which sends more than one batch's statistics: use"
            f" --adapter {either([UNWAITING, *able])} (with default parameters), or drop it"
        )
    return adapter


def _private_uploads(settings: Settings, adapter: Adapter) -> PrivateUploads | None:
    """Return noise for uploads of a method that adds none, and what they cost before, while the state is locked."""
    if settings.epsilon is None or adapter.sends_noise is not None:
        return None
    noise = noise_for(settings.epsilon, settings.delta)
    spent = Accountant(settings.state / "privacy.json", noise, settings.delta, settings.budget)
    return PrivateUploads(Noise(noise), spent)


def _rename(client: Client, images: int) -> Client:
    """Return a client that was saved before its last images with another key: names given since are not given again."""
    if "key" not in client.private:
        return client
    key = client.private["key"]
    return client._replace(private={**client.private, "key": numbered(key, torch.full_like(key, images))})


def _adaptation(settings: Settings, equipment: Equipment) -> Adaptation:
    return Adaptation(
        equipment.network,
        equipment.adapter,
        window=settings.window,
        guard=settings.guard_or_usual,
        check=settings.check,
    )


def _handler(
    settings: Settings,
    equipment: Equipment,
    handover: Handover,
    place: StreamPosition,
    adaptation: Adaptation,
    private: PrivateUploads | None,
) -> RequestHandler:
    return RequestHandler(
        settings.name,
        equipment.network,
        equipment.adapter,
        handover,
        spare=equipment.spare,
        facts={"model": settings.model, "images_per_batch": settings.batch, "version": fedctta.__version__},
        lockstep=settings.lockstep,
        min_batch=settings.min_batch,
        last=(place.run, place.round),
        health=partial(note_health, adaptation) if settings.epsilon is None else dict,  # which noise does not cover
        private=private,
    )
