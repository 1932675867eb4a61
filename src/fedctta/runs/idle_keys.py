"""Refuse values of keys that would have no effect on a run, as its stream shows."""

from __future__ import annotations

from fedctta.errors import UserError
from fedctta.runs.settings import ALONE, Experiment
from fedctta.streams import Stream


def refuse_idle_keys(experiment: Experiment, communicates: bool, stream: Stream) -> None:
    """Refuse an interval that ends after the run, and to measure forgetting on more images than there are."""
    if communicates and experiment.interval > len(stream):
        raise UserError(
            f"interval={experiment.interval} is longer than the run, so that the server never answers: give at most"
            f" {len(stream)}, the number of rounds, or aggregator={ALONE}"
        )
    most = max(len(images) for images in stream.data.images.values())
    if experiment.retention > most:
        raise UserError(f"retention={experiment.retention} is more than the {most} images of a domain: give {most}")
