"""What a run on data of one's own needs besides the data: methods that can work on them, and images of the source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from fedctta.adapters import Adapter, adapters
from fedctta.aggregators import Aggregator, aggregators
from fedctta.data.source_images import source_files
from fedctta.errors import UserError, either
from fedctta.registry import Registry
from fedctta.runs.settings import Experiment
from fedctta.streams import Stream


def refuse_other_inputs(stream: Stream, adapter: Adapter, aggregator: Aggregator) -> None:
    """Refuse methods for data that they cannot look at, or whose colours they cannot change."""
    data = stream.data
    if data.pictures and stream.shape[-1] == 3:
        return
    pairs: tuple[tuple[str, Adapter | Aggregator, Registry], ...]  # type: ignore[type-arg]
    pairs = (("adapter", adapter, adapters), ("aggregator", aggregator, aggregators))
    seen = data.pictures or len(stream.shape) in (2, 3)  # images [H, W, C] or [C, H, W], or series [C, T]
    for kind, method, registry in pairs:
        if method.pictures or (method.looks and not seen):
            able = [n for n, cls in registry.classes().items() if not cls.pictures and (seen or not cls.looks)]
            form = f"{'uint8' if data.pictures else 'float'} {list(stream.shape)}"
            works = "works on colour pictures" if method.pictures else "looks at images or series"
            raise UserError(
                f"{kind} {method.name} {works} and an image of these data is {form}: use {kind} {either(able)}"
            )


def asks_for_images(experiment: Experiment) -> bool:
    """Whether a method of an experiment uses images of the source."""
    if experiment.method(adapters, experiment.adapter).source_images:
        return True
    aggregator = experiment.method(aggregators, experiment.aggregator)
    key, _, value = aggregator.without_images.partition("=")
    return bool(key) and str(getattr(aggregator, key)) != value


def refuse_idle_source_images(experiments: Sequence[Experiment]) -> None:
    """Refuse images of the source that no method of any experiment uses."""
    named = [experiment for experiment in experiments if experiment.source_images is not None]
    if named and not any(asks_for_images(experiment) for experiment in named):
        raise UserError("source_images has no effect: no method of these runs studies the source; drop it")


def hash_source_images(experiment: Experiment) -> bytes:
    """Return a hash of names, sizes and times of the files that images of the source come from."""
    found = [(str(path), path.stat()) for path in source_files(experiment.source_images)]
    stats = [(name, state.st_size, state.st_mtime_ns) for name, state in found]
    return hashlib.sha256(repr(stats).encode()).digest() if stats else b""
