"""The model as it is, beside every method: a run without adaptation for every setting that a call plays.

It is a run like any other, played once for all methods that meet the same images with the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedctta.adapters import adapters
from fedctta.data.domains import Domains
from fedctta.errors import UserError
from fedctta.keys import DEFAULTS
from fedctta.runs.cache import Cache
from fedctta.runs.settings import ALONE, Experiment

MATTERS = {
    *("dataset", "severity", "domains", "folder", "layout", "size", "model", "weights"),
    *("stream", "samples", "order", "clients", "batch", "slots", "seed", "device", "lift", "precision", "liars"),
}
"""What decides the predictions of a model that does not adapt, how they are computed, or which of them count."""


def add_baselines(experiments: Sequence[Experiment], cache: Cache) -> list[Experiment]:
    """Return the experiments, then the runs without adaptation that are not among them and that labels can judge."""
    found = {_setting(each): None for each in experiments if _is_idle(each)}
    added: dict[str, Experiment] = {}
    for each in experiments:
        setting = _setting(each)
        if setting not in found and setting not in added and _has_labels(each, cache):
            added[setting] = baseline_of(each)
    return [*experiments, *added.values()]


def refuse_idle_baseline(experiments: Sequence[Experiment], cache: Cache) -> None:
    """Refuse to leave out what would not be added."""
    if len(add_baselines(experiments, cache)) == len(experiments):
        raise UserError(
            "--no-baseline (baseline=False) has no effect: a run without adaptation is asked for, or there are no"
            " labels to judge it; drop one of the two"
        )


def baseline_of(experiment: Experiment) -> Experiment:
    """Return the run without adaptation in the same setting."""
    idle = next(name for name, cls in adapters.classes().items() if not cls.adapts)
    usual = {key: DEFAULTS[key] for key in DEFAULTS if key not in MATTERS}
    kept = (experiment.stream, experiment.samples)
    parameters = {name: own for name, own in experiment.parameters.items() if name in kept}
    lift = "auto" if experiment.lift == "graph" else experiment.lift  # graphs may be refused, and save little here
    own = {"adapter": idle, "aggregator": ALONE, "lift": lift, "parameters": parameters}
    return replace(experiment, **{**usual, **own})


def _setting(experiment: Experiment) -> str:
    """Name what the predictions of the model as it is depend on; how it is lifted does not count."""
    return replace(baseline_of(experiment), lift=DEFAULTS["lift"]).fingerprint


def _is_idle(experiment: Experiment) -> bool:
    return not adapters.classes()[experiment.adapter].adapts


def _has_labels(experiment: Experiment, cache: Cache) -> bool:
    data = cache.data(experiment)
    return not isinstance(data, Domains) or any(data.labelled(name) for name in data.names)
