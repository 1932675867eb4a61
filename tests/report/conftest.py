"""Runs that never happened: records drawn from numpy, with accuracies chosen by the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedctta.adapters import adapters
from fedctta.results.records import Record

DOMAINS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)


def fake_record(
    *,
    accuracy: float = 0.5,
    rounds: int = 30,
    clients: int = 4,
    absent: bool = False,
    kept: int | None = None,
    domains: tuple[str, ...] = DOMAINS,
    **settings: Any,
) -> Record:
    """Make a run in which every batch holds 10 images and exactly the wanted share of all is right."""
    asked = {
        **{"dataset": "cifar10-c", "severity": 5, "model": "resnet8", "adapter": "bn", "aggregator": "fedctta"},
        **{"stream": "niid", "seed": 0, "clients": clients, "batch": 10, "slots": 50, "interval": 1},
        **{"device": "cpu", "lift": "auto"},
        **settings,
    }
    assert asked["adapter"] in adapters.classes(), f"there is no adapter {asked['adapter']}"
    random = np.random.default_rng(int(asked["seed"]))
    slot, client = np.indices((rounds, clients))
    shift = 0 if asked["stream"] == "iid" else 4 * (client * 4 // clients)
    domain = ((slot * len(domains) // rounds + shift) % len(domains)).astype(np.int32)
    if absent:
        domain[random.random(domain.shape) < 0.2] = -1
        domain[rounds // 2] = -1  # a round in which nobody came
    seen = np.where(domain >= 0, 10, 0).astype(np.int32)
    kept = rounds if kept is None else kept
    at = np.unique(np.linspace(0, rounds - 1, kept).round().astype(np.int64)) if kept else np.zeros(0, np.int64)
    near = (domain[at][:, :, None] == domain[at][:, None, :]) * 6.0 + random.random((len(at), clients, clients))
    weights = {"local": np.broadcast_to(np.eye(clients), near.shape), "fedavg": np.ones_like(near)}
    raw = weights.get(asked["aggregator"], near)
    correct = _exactly(seen, accuracy, domain, random)
    met = np.stack([domain == k for k in range(len(domains))])
    shown, hit = ((met * counts).sum(1)[..., None].astype(np.int32) for counts in (seen, correct))  # of a single class
    return Record(
        settings=asked,
        domains=domains,
        seen=seen,
        correct=correct,
        domain=domain,
        class_seen=shown,
        class_right=hit,
        class_predicted=shown,
        calibration=np.array([[seen.sum(), 800_000 * seen.sum(), correct.sum()]] + [[0, 0, 0]] * 14, np.int64),
        entropy=np.where(seen > 0, 0.5, 0).astype(np.float32),
        collaboration=(raw / raw.sum(-1, keepdims=True)).astype(np.float32),
        collaboration_rounds=at,
        same_domain_weight=float("nan") if clients == 1 else 0.75,
        bytes_up=0 if asked["aggregator"] == "local" else 1_500_000 * clients,
        bytes_down=0 if asked["aggregator"] == "local" else 1_500_000 * clients,
        seconds=12.5 + 2 * accuracy,
        peak_memory_mb=512.0,
    )


def _exactly(seen: Any, accuracy: float, domain: Any, random: np.random.Generator) -> Any:
    """Share the right answers out: harder domains get fewer, and the total is the rounded product."""
    hard = 1 - 0.5 * np.sin(1.0 + 2.4 * domain) ** 2
    wished = np.clip(seen * accuracy * hard / hard[seen > 0].mean() + random.normal(0, 0.6, seen.shape), 0, seen)
    correct = np.where(seen > 0, np.floor(wished), 0).astype(np.int32)
    gap = round(float(seen.sum()) * accuracy) - int(correct.sum())
    order = random.permutation(np.flatnonzero(seen > 0))
    flat, room = correct.reshape(-1), seen.reshape(-1)
    while gap:
        for k in order:
            if gap > 0 and flat[k] < room[k]:
                flat[k], gap = flat[k] + 1, gap - 1
            elif gap < 0 and flat[k] > 0:
                flat[k], gap = flat[k] - 1, gap + 1
    return correct


@pytest.fixture(scope="session")
def fake() -> Callable[..., Record]:
    """Give the maker of runs."""
    return fake_record
