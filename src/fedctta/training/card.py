"""The card of weights: how they came to be and how good they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch
from torch import nn

from fedctta.training.recipe import Recipe


def make_card(
    model: str,
    dataset: str,
    module: nn.Module,
    recipe: Recipe,
    device: torch.device | str,
    accuracy: float,
    accuracy_by_corruption: Mapping[str, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Tell how weights came to be and how good they are, as plain JSON values; `more` adds fields."""
    by_corruption = dict(accuracy_by_corruption or {})
    mean = sum(by_corruption.values()) / len(by_corruption) if by_corruption else None
    device = torch.device(device)
    return {
        "model": model,
        "dataset": dataset,
        "parameters": sum(p.numel() for p in module.parameters()),
        "accuracy": accuracy,
        "accuracy_corrupted": mean,
        "accuracy_by_corruption": by_corruption,
        "recipe": asdict(recipe),
        "seed": recipe.seed,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "date": datetime.now(UTC).date().isoformat(),
        **more,
    }
