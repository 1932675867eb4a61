"""Train a network on clean images, quickly: everything stays on the device and no step waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError, unknown
from fedctta.models import augmix
from fedctta.models.inputs import as_tensor, to_input

WARM_UP = 0.2
"""The share of one-cycle training in which the learning rate rises."""

PAD = 4
"""The black border, in pixels, within which a random crop may move."""

OnProgress = Callable[[int, int, float], None]
"""Called after every epoch with the epochs done, the epochs in all, and the mean loss of the last one."""


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
    "optimizer": ("sgd", "adam"),
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


def train(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    recipe: Recipe,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
    *,
    bf16: bool = False,
) -> nn.Module:
    """Train `module` in place on uint8 images [n, H, W, 3]; return it on `device`, in evaluation mode.

    The same module, data, recipe and device give the same weights. `bf16` is for speed on CUDA: it computes in
    bfloat16 where torch's autocast deems it safe and takes the kernels that run fastest, whatever the order they add
    in, so that weights then repeat only nearly.
    """
    device = torch.device(device)
    _check_pairs(images, labels)
    pixels, targets = as_tensor(images).to(device), as_tensor(labels).to(device, torch.int64)
    module.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = _optimizer(module, recipe, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.backends.cudnn.flags(enabled=True, benchmark=bf16, deterministic=not bf16):
        for epoch in range(recipe.epochs):
            mean = train_epoch(module, pixels, targets, recipe, optimizer, generator, epoch, bf16)
            if not math.isfinite(mean):
                raise UserError(f"training diverged in epoch {epoch + 1} (loss {mean}): lower the recipe's lr")
            if on_progress is not None:
                on_progress(epoch + 1, recipe.epochs, mean)
    return module.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def train_epoch(
    module: nn.Module,
    pixels: Tensor,
    targets: Tensor,
    recipe: Recipe,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    epoch: int,
    bf16: bool = False,
) -> float:
    """Train for epoch number `epoch` of `recipe.epochs` on tensors of the module's device; return the mean loss."""
    size = min(recipe.batch, len(pixels))
    steps = len(pixels) // size
    total = torch.zeros((), device=pixels.device)
    for step, (x, index) in enumerate(_batches(pixels, size, recipe, generator)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, (epoch + step / steps) / recipe.epochs)
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=bf16):
            logits = module(x)
        loss = _loss(logits.float(), targets[index], recipe)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
    return total.item() / steps


@torch.no_grad()
def evaluate(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    device: torch.device | str = "cpu",
    batch: int = 500,
) -> float:
    """Return the share of images that `module`, in evaluation mode and on `device`, classifies rightly."""
    _check_pairs(images, labels)
    was_training = module.training
    module.to(device).eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for start in range(0, len(images), batch):
        chosen = slice(start, start + batch)
        predicted = module(to_input(images[chosen], device)).argmax(1)
        correct += (predicted == as_tensor(labels[chosen]).to(device)).sum()
    module.train(was_training)
    return int(correct) / len(images)


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


def _check_pairs(images: NDArray[Any] | Tensor, labels: NDArray[Any] | Tensor) -> None:
    if len(images) != len(labels) or len(images) == 0:
        raise UserError(f"{len(images)} images and {len(labels)} labels: give as many of each, at least one")
    to_input(images[:1])  # refuses what is not uint8 [n, H, W, 3]


def _optimizer(module: nn.Module, recipe: Recipe, fused: bool) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": fused}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), **options)
    return torch.optim.SGD(module.parameters(), momentum=recipe.momentum, nesterov=recipe.momentum > 0, **options)


def _loss(logits: Tensor, targets: Tensor, recipe: Recipe) -> Tensor:
    """Return the cross-entropy or, of three views one after the other, the first's and the divergence of all."""
    views = logits.reshape(-1, *targets.shape, logits.shape[-1])
    loss = F.cross_entropy(views[0], targets, label_smoothing=recipe.label_smoothing)
    return loss + recipe.consistency * divergence(views) if recipe.consistency else loss


def divergence(views: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of the views' logits [V, B, classes], averaged over the batch.

    mean_v KL(p_v || M) with M = mean_v p_v.
    """
    p = views.softmax(-1)
    middle = p.mean(0).clamp(1e-7, 1).log()
    return (p * (views.log_softmax(-1) - middle)).sum(-1).mean()


def _batches(pixels: Tensor, size: int, recipe: Recipe, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch as (what the network reads [views * size, 3, H, W], the images' indices), in random order.

    Images left over after the last whole batch wait for another epoch. All of an epoch's chances are drawn at
    once, on the CPU, so that every device sees the same ones.
    """
    n, height, width = pixels.shape[:3]
    order = torch.randperm(n, generator=generator)
    shift = torch.randint(2 * PAD + 1, (n, 2), generator=generator)
    flip = torch.randint(2, (n,), generator=generator, dtype=torch.bool)
    order, shift, flip = (chances.to(pixels.device) for chances in (order, shift, flip))
    mixes = 0 if recipe.augment != "augmix" else 2 if recipe.consistency else 1
    plans = [augmix.draw(n, height, width, generator).to(pixels.device) for _ in range(mixes)]
    for start in range(0, n - size + 1, size):
        chosen = slice(start, start + size)
        index = order[chosen]
        images = pixels[index]
        if recipe.augment != "none":
            images = crop_and_flip(images, shift[chosen], flip[chosen])
        views = [augmix.mix(images.movedim(-1, 1), plan.part(chosen)) for plan in plans]
        if mixes != 1:
            views.insert(0, to_input(images))
        yield views[0] if len(views) == 1 else torch.cat(views), index


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Cut each image [B, H, W, 3] out of its black-padded self at `shift` [B, 2]; mirror it where `flip` [B].

    Shift (0, 0) is the top left corner of the padded image and (PAD, PAD) the image itself.
    """
    size, height, width = images.shape[:3]
    padded = F.pad(images, (0, 0, PAD, PAD, PAD, PAD))
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], columns.flip(0), columns)
    which = torch.arange(size, device=images.device)[:, None, None]
    return padded[which, (rows + shift[:, :1])[:, :, None], (columns + shift[:, 1:])[:, None, :]]
