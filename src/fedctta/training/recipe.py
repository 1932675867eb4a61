"""How a network is trained: optimiser, learning rate, augmentation, and the recipes that have a name."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedctta.errors import UserError, unknown

WARM_UP = 0.2
"""The share of one-cycle training in which the learning rate rises."""

GROWTH, STEP = 0.8, 8
"""The share of training in which images that start small grow, and by how many pixels at a time."""


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    `augment="augmix"` crops, flips, and then mixes (see `augmix`); `consistency` is the weight of the Jensen-Shannon
    divergence between a clean view and two mixed ones, 0 for learning from a single mixed view. `augment="resized"`
    enlarges a random part of every image and flips it. `pairs` is the share of batches whose images are mixed in pairs
    (see `pairs`). `start_size` is the side of the first images as a share of their own: `side_of`.
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
    pairs: float = 0.0
    start_size: float = 1.0
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
        if not 0 <= self.pairs <= 1:
            raise UserError(f"recipe: pairs is {self.pairs}: give a share of the batches in [0, 1]")
        if self.pairs and self.consistency:
            raise UserError("recipe: pairs have no view of their own to compare: leave consistency 0, or pairs")
        if not 0 < self.start_size <= 1:
            raise UserError(f"recipe: start_size is {self.start_size}: give a share of the side in (0, 1]")


_CHOICES = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("onecycle", "cosine", "constant"),
    "augment": ("crop+flip", "resized", "augmix", "none"),
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


TINY = Recipe(epochs=30, label_smoothing=0.1, augment="resized", start_size=0.5)
TINY_LAYER_NORM = replace(LAYER_NORM, epochs=60, augment="resized", pairs=0.5)
"""For the 100,000 images of 64 pixels of Tiny ImageNet: models with BatchNorm, and others."""


def usual_recipe(model: str, dataset: str) -> Recipe | None:
    """Return the standard recipe of a model for a data set where it is not `RECIPES["standard"]`."""
    if dataset == "tiny-imagenet":
        return TINY_LAYER_NORM if BY_MODEL.get(model) == LAYER_NORM else TINY
    return BY_MODEL.get(model)


def side_of(recipe: Recipe, side: int, done: float) -> int:
    """Return the side of the images, in pixels, in an epoch that ends with a share `done` in (0, 1] of training behind.

    It grows from `start_size * side` to `side` over the first `GROWTH` of training, in steps of `STEP` pixels, and the
    last epoch always has whole images: an epoch of smaller ones takes less time.

    >>> [side_of(Recipe(start_size=0.5), 64, done) for done in (0, 0.2, 0.5, 0.79, 0.8)]
    [32, 40, 48, 56, 64]
    """
    if done >= GROWTH or recipe.start_size == 1:
        return side
    share = recipe.start_size + (1 - recipe.start_size) * done / GROWTH
    return max(min(STEP, side), int(share * side) // STEP * STEP)


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
