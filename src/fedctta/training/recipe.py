"""How a network is trained: optimiser, learning rate, augmentation, and the recipes that have a name."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedctta.errors import UserError, unknown

WARM_UP = 0.2
"""The share of one-cycle training in which the learning rate rises."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `augment="augmix"` crops, flips, and then mixes (see `augmix`); `consistency` is the weight of the Jensen-Shannon
    divergence between a clean view and two mixed ones, 0 for learning from a single mixed view.
    """

    epochs: int = 60
    batch: int = 256
    optimizer: str = "sgd"
    lr: float = 0.2
    weight_decay: float = 5e-4
    momentum: float = 0.9
    schedule: str = "onecycle"
    augment: str = "crop+flip"
    label_smoothing: float = 0.0
    consistency: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field, known in _CHOICES.items():
            if getattr(self, field) not in known:
                raise unknown(field, getattr(self, field), known)
        for field in ("epochs", "batch", "lr"):
            if not getattr(self, field) > 0:
                raise UserError(f"recipe: {field} is {getattr(self, field)}: give a number above 0")
        for field in ("weight_decay", "momentum", "label_smoothing"):
            if not 0 <= getattr(self, field) < 1:
                raise UserError(f"recipe: {field} is {getattr(self, field)}: give a number in [0, 1)")
        if not 0 <= self.consistency < math.inf:
            raise UserError(f"recipe: consistency is {self.consistency}: give 0 or a number above")
        if self.consistency and self.augment != "augmix":
            raise UserError("recipe: consistency compares mixed views: add augment=augmix, or leave it 0")


_CHOICES = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("onecycle", "cosine", "constant"),
    "augment": ("crop+flip", "augmix", "none"),
}


RECIPES = {
    "standard": Recipe(),
    "paper": Recipe(
        epochs=50, batch=64, optimizer="adam", lr=1e-3, weight_decay=0.0, schedule="constant", augment="none"
    ),
    "augmix": Recipe(epochs=100, batch=128, lr=0.1, schedule="cosine", augment="augmix"),
}


FINE_TUNE = Recipe(epochs=24, batch=64, lr=0.05)
"""For a network that knows ImageNet; unless epochs are given, they are those of `STEPS` steps."""

STEPS = 450
"""Of training on some domains of a public set, however many images these have."""


def epochs_of(steps: int, images: int, batch: int) -> int:
    """Return how many epochs make about that many steps.

    >>> epochs_of(450, 1253, 64), epochs_of(450, 10, 16)
    (24, 450)
    """
    return max(1, round(steps / max(1, images // batch)))


LAYER_NORM = Recipe(epochs=100, batch=512, optimizer="adamw", lr=1e-3, weight_decay=0.05, label_smoothing=0.1)
"""The standard recipe of models with LayerNorm only: `BY_MODEL`."""

BY_MODEL = {
    "vit-tiny": LAYER_NORM,
    "vit-w48": replace(LAYER_NORM, epochs=40, batch=64, lr=2e-3),
    "convnext-atto": LAYER_NORM,
}
"""Standard recipes of models that do not take the usual one."""


def learning_rate(recipe: Recipe, done: float) -> float:
    """Return the learning rate when a share `done` in [0, 1) of all steps is behind.

    constant: lr.  cosine: lr (1 + cos(pi done)) / 2.  onecycle: a linear rise to lr over the first fifth,
    then the cosine over the rest.
    """
    if recipe.schedule == "constant":
        return recipe.lr
    rise = WARM_UP if recipe.schedule == "onecycle" else 0.0
    if done < rise:
        return recipe.lr * done / rise
    return recipe.lr * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2
