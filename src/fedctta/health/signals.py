"""How a device fares, without labels: pure functions of logits and a small state.

Every batch gives the mean entropy, the mean confidence and the share of each predicted class. A check, on some batches,
also asks the source model, and both models for the mirrored images. With p(x) a model's probabilities, its mirror
agreement is

    A = (1/B) sum_b sum_k p_k(x_b) p_k(mirror(x_b))

the chance that classes drawn from the two predictions are the same. The difference of the two models' agreements, image
by image, says whether adapting helps:

    d_b = A_b(adapted) - A_b(source) + 1/B

Statistics of few images are noisy, by 1/B in variance. That costs agreement more than accuracy, hence the last term.

The **estimate of accuracy** is the mirror agreement. The source model is only seen on checks, so its estimate is the
mean of these. The adapted model's confidence c is known of every batch, and it corrects for how easy the images of the
checks were:

    accuracy = c(last batches) + (A - c)(last checks)

Data that are not images have no mirror: there both predictions are the same one, and A is the mean of sum_k p_k^2.
Logits of a method that are not those of a trained classifier (`Adapter.calibrated`) are first scaled to the spread of
the source's.

Means forget: those of batches over the last 20 or so, those of checks over the last 4 or so. Checks may differ in size:
what is remembered is never worth more than three times a new check.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.adapters.common.losses import entropy
from fedctta.core.network import Network, Tensors

BATCHES = 20  # that means of batches reach back
KEEP = 0.75  # weight of the earlier checks beside a new one


class Signals(NamedTuple):
    """What is remembered of a device's batches and checks."""

    batches: Tensor
    entropy: Tensor
    confidence: Tensor
    shares: Tensor  # [K] of predicted classes
    source: Tensor  # sums over images of checks, forgotten by KEEP; those that the source saw: its A
    shown: Tensor
    estimate: Tensor  # those that the adapted model saw: its A, its confidence
    sure: Tensor
    images: Tensor
    disagreement: Tensor  # those that both saw: different classes, d, d^2
    gain: Tensor
    square: Tensor
    pairs: Tensor


def first_signals(classes: int, device: torch.device | str = "cpu") -> Signals:
    """Return the signals before the first batch."""
    zero = torch.zeros((), device=device)
    return Signals(*(torch.zeros(classes, device=device) if name == "shares" else zero for name in Signals._fields))


def watch(old: Signals, logits: Tensor) -> Signals:
    """Return the signals after a batch's logits[B, K]."""
    p = logits.float().softmax(-1)
    weight = 1 / (old.batches + 1).clamp(max=BATCHES)
    shares = torch.zeros_like(old.shares).index_add(0, p.argmax(-1), torch.ones_like(p[:, 0]) / len(p))
    return old._replace(
        batches=old.batches + 1,
        entropy=torch.lerp(old.entropy, entropy(logits.float()).mean(), weight),
        confidence=torch.lerp(old.confidence, p.amax(-1).mean(), weight),
        shares=torch.lerp(old.shares, shares, weight),
    )


class Views(NamedTuple):
    """One model's logits of some images, and of the same images mirrored."""

    plain: Tensor
    mirrored: Tensor


def compare(old: Signals, adapted: Views, source: Views, rows: Tensor, calibrated: bool = True) -> Signals:
    """Return the signals after a check; the source was shown the images in `rows` only."""
    confidence = adapted.plain.float().softmax(-1).amax(-1)  # as `watch` has it, which knows of no scale
    if not calibrated:
        scale = source.plain.std(-1).mean() / adapted.plain[rows].std(-1).mean().clamp_min(1e-12)
        adapted = Views(*(logits * scale for logits in adapted))
    all_of_adapted, of_source = mirror_agreement(adapted), mirror_agreement(source)
    d = all_of_adapted[rows] - of_source + 1 / len(all_of_adapted)
    differs = adapted.plain[rows].argmax(-1) != source.plain.argmax(-1)
    new = {
        "estimate": all_of_adapted.sum(),
        "sure": confidence.sum(),
        "images": d.new_tensor(len(all_of_adapted)),
        "disagreement": differs.sum(),
        "gain": d.sum(),
        "square": d.square().sum(),
        "pairs": d.new_tensor(len(d)),
    }
    keep = _keep(old.pairs, len(d))
    return look(old, source)._replace(**{name: keep * getattr(old, name) + value for name, value in new.items()})


def look(old: Signals, source: Views) -> Signals:
    """Return the signals after a check of the source model alone."""
    of_source = mirror_agreement(source)
    keep, shown = _keep(old.shown, len(of_source)), of_source.new_tensor(len(of_source))
    return old._replace(source=keep * old.source + of_source.sum(), shown=keep * old.shown + shown)


def _keep(old: Tensor, new: int) -> Tensor:
    """Return the share that is kept of what `old` images showed, after a check of `new` ones."""
    return (KEEP / (1 - KEEP) * new / old.clamp_min(1)).clamp(max=KEEP)


def forget_checks(old: Signals) -> Signals:
    """Return the signals without what checks found of the two models together."""
    checks = Signals._fields[Signals._fields.index("disagreement") :]
    return old._replace(**{name: torch.zeros_like(getattr(old, name)) for name in checks})


def mirror_agreement(views: Views) -> Tensor:
    """Return A of every image."""
    return (views.plain.float().softmax(-1) * views.mirrored.float().softmax(-1)).sum(-1)


def gain(signals: Signals) -> tuple[Tensor, Tensor]:
    """Return the mean of d and its standard error."""
    pairs = signals.pairs.clamp_min(1)
    mean = signals.gain / pairs
    return mean, ((signals.square / pairs - mean.square()).clamp_min(0) / pairs).sqrt()


def distances(network: Network, own: Tensors) -> tuple[float, float]:
    """Return how far statistics and weights of a client are from the source's.

    Statistics: the root mean square of (mean - mean_source) / deviation_source over all channels. Weights: the norm of
    the difference, relative to the norm of the source's.
    """
    shifts, moved, whole = [], [], []
    for name, tensor in own.items():
        source = network.state[name]
        layer, _, kind = name.rpartition(".")
        if kind == "running_mean" and layer in network.norms:
            shifts.append((tensor - source).square() / network.state[f"{layer}.running_var"].clamp_min(1e-12))
        elif kind != "running_var" or layer not in network.norms:
            moved.append((tensor - source).square().sum())
            whole.append(source.square().sum())
    statistics = float(torch.cat([s.flatten() for s in shifts]).mean().sqrt()) if shifts else 0.0
    weights = math.sqrt(float(sum(moved)) / max(float(sum(whole)), 1e-12)) if moved else 0.0
    return statistics, weights


@dataclass(frozen=True)
class Alarm:
    """At which batch which estimates raised an alarm."""

    batch: int
    accuracy: float
    source_accuracy: float

    def __str__(self) -> str:
        """Say it in words."""
        return (
            f"batch {self.batch}: the adapted model seems to be right on {self.accuracy:.0%} of images, the source"
            f" model on {self.source_accuracy:.0%}"
        )


@dataclass(frozen=True)
class Health:
    """How a device fares: means over its last batches; None where nothing is known yet.

    `answers` says which model predicts now. `accuracy`, of this model, and `source_accuracy` are estimates. `skipped`
    batches had, or led to, values that are not finite.
    """

    batches: int
    skipped: int
    answers: str
    entropy: float | None
    confidence: float | None
    top_class: int | None
    top_share: float | None
    disagreement: float | None
    accuracy: float | None
    source_accuracy: float | None
    statistics_distance: float
    weights_distance: float
    alarms: tuple[Alarm, ...]


def summarise(signals: Signals, answers: str = "adapted") -> dict[str, float | int | None]:
    """Return the signals as the numbers of a `Health`; `answers`: which model does."""
    found: dict[str, float | int | None] = dict.fromkeys(
        ("entropy", "confidence", "top_class", "top_share", "disagreement", "accuracy", "source_accuracy")
    )
    if signals.batches > 0:
        share, top = signals.shares.max(0)
        found |= {"entropy": float(signals.entropy), "confidence": float(signals.confidence)}
        found |= {"top_class": int(top), "top_share": float(share)}
    if signals.images > 0:
        found["accuracy"] = float(estimate_accuracy(signals))
    if signals.pairs > 0:
        found["disagreement"] = float(signals.disagreement / signals.pairs)
    if signals.shown > 0:
        found["source_accuracy"] = float(signals.source / signals.shown)
    if answers == "source":
        found["accuracy"] = found["source_accuracy"]
    return found


def estimate_accuracy(signals: Signals) -> Tensor:
    """Return the estimate for the adapted model, after its first check and if it answers."""
    seen = torch.where(signals.batches > 0, signals.confidence - signals.sure / signals.images, 0)
    return (signals.estimate / signals.images + seen).clamp(0, 1)
