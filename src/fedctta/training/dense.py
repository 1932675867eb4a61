"""Train and judge networks that give logits for every pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.data.mask_layouts import IGNORE
from fedctta.errors import UserError
from fedctta.models.inputs import as_tensor, to_input
from fedctta.results.metrics import mean_iou
from fedctta.training.batches import border, crop_and_flip, draw_chances
from fedctta.training.central import OnProgress, make_optimizer
from fedctta.training.recipe import Recipe, learning_rate

DENSE_RECIPE = Recipe(epochs=12, batch=16, optimizer="adam", lr=3e-3, weight_decay=0.0)
"""What the packaged weights for the embedded scenes were trained with."""


def train_dense(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    masks: NDArray[Any] | Tensor,
    recipe: Recipe,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> nn.Module:
    """Train `module` in place on uint8 images [n, H, W, 3] and masks [n, H, W] of class numbers (255: ignored).

    The loss is the mean cross-entropy over all pixels of a batch that are not ignored. Returns the module on `device`,
    in evaluation mode. The same module, data, recipe and device give the same weights.
    """
    device = torch.device(device)
    if recipe.augment not in ("crop+flip", "none"):
        raise UserError(f"recipe: {recipe.augment} moves pixels away from their labels: use augment=crop+flip or none")
    if recipe.pairs or recipe.start_size < 1:
        raise UserError("recipe: pairs and start_size are for one class an image: leave them out for masks")
    _check(images, masks)
    # One array of both, so that they move together. Masks are stored as 1 + class: what a crop pads with 0, and
    # 255 + 1 = 0 in a byte, are then both "ignored".
    shown = as_tensor(masks).to(device=device, dtype=torch.uint8)[..., None] + 1
    scenes = torch.cat([as_tensor(images).to(device), shown], -1)
    module.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = make_optimizer(module, recipe, fused=device.type == "cuda")
    size = min(recipe.batch, len(scenes))
    steps = len(scenes) // size
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        for epoch in range(recipe.epochs):
            total = torch.zeros((), device=device)
            for step, batch in enumerate(_batches(scenes, size, recipe, generator)):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(recipe, (epoch + step / steps) / recipe.epochs)
                loss = _loss(module(to_input(batch[..., :3])), batch[..., 3].long() - 1, recipe.label_smoothing)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.detach()
            mean = total.item() / steps
            if not math.isfinite(mean):
                raise UserError(f"training diverged in epoch {epoch + 1} (loss {mean}): lower the recipe's lr")
            if on_progress is not None:
                on_progress(epoch + 1, recipe.epochs, mean)
    return module.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def evaluate_dense(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    masks: NDArray[Any] | Tensor,
    device: torch.device | str = "cpu",
    batch: int = 50,
) -> dict[str, float]:
    """Judge `module`, in evaluation mode and on `device`, by the pixels that are not ignored (255).

    With C[t, p] the number of pixels of class t predicted as p: "pixel_accuracy" is the trace of C over its sum, and
    "miou" the mean over the classes k seen of C[k, k] / (row sum + column sum - C[k, k]), as in the record of a run.
    """
    _check(images, masks)
    was_training = module.training
    module.to(device).eval()
    confusion: Tensor | int = 0
    for start in range(0, len(images), batch):
        chosen = slice(start, start + batch)
        confusion = confusion + count(
            module(to_input(images[chosen], device)), as_tensor(masks[chosen]).to(device).long()
        )
    module.train(was_training)
    return judge(torch.as_tensor(confusion))


def count(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the confusion matrix [classes, classes], true class first, of logits [B, classes, H, W]."""
    classes = logits.shape[1]
    valid = masks != IGNORE
    pairs = masks[valid] * classes + logits.argmax(1)[valid]
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def judge(confusion: Tensor) -> dict[str, float]:
    """Return pixel accuracy and mean intersection over union of a confusion matrix; 0 where nothing counts."""
    counts = confusion.cpu().numpy()
    if not counts.any():
        return {"pixel_accuracy": 0.0, "miou": 0.0}
    right = counts.diagonal()
    miou = mean_iou(counts.sum(1), right, counts.sum(0))
    return {"pixel_accuracy": float(right.sum() / counts.sum()), "miou": miou}


def _check(images: NDArray[Any] | Tensor, masks: NDArray[Any] | Tensor) -> None:
    if len(images) == 0 or tuple(images.shape[:3]) != tuple(masks.shape):
        raise UserError(
            f"images {list(images.shape)} and masks {list(masks.shape)}: give [n, H, W, 3] and [n, H, W], n at least 1"
        )
    to_input(images[:1])  # refuses what is not uint8 [n, H, W, 3]


def _batches(scenes: Tensor, size: int, recipe: Recipe, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield one epoch of image-and-mask batches [size, H, W, 4] in random order, cropped and mirrored at random.

    Scenes left over after the last whole batch wait for another epoch.
    """
    n = len(scenes)
    order, shift, flip = draw_chances(n, generator, scenes.device, border(scenes.shape[1]))
    for start in range(0, n - size + 1, size):
        chosen = slice(start, start + size)
        batch = scenes[order[chosen]]
        yield batch if recipe.augment == "none" else crop_and_flip(batch, shift[chosen], flip[chosen])


def _loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross-entropy of logits [B, classes, H, W] over targets [B, H, W] other than -1."""
    summed = F.cross_entropy(logits, targets, ignore_index=-1, label_smoothing=smoothing, reduction="sum")
    return summed / (targets >= 0).sum().clamp(min=1)
