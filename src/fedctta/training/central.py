"""Train a network on clean images, quickly: everything stays on the device and no step waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.errors import UserError
from fedctta.models.inputs import as_tensor, read_batch, to_input
from fedctta.training.batches import draw_batches
from fedctta.training.compiled import compile_network
from fedctta.training.pairs import draw_pairings, mix_pairs
from fedctta.training.recipe import Recipe, learning_rate, side_of
from fedctta.training.stretches import Stretches

OnProgress = Callable[[int, int, float], None]
"""Called after every epoch with the epochs done, the epochs in all, and the mean loss of the last one."""


SERIES = 3
"""How many axes series have: float32 [n, channels, time]."""


def train(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    recipe: Recipe,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
    *,
    bf16: bool = False,
    compiled: bool = False,
    stretches: Stretches | None = None,
) -> nn.Module:
    """Train `module` in place on uint8 images [n, H, W, 3], or on series; return it on `device`, in evaluation mode.

    The same module, data, recipe and device give the same weights. `bf16` is for speed on CUDA: it computes in
    bfloat16 where torch's autocast deems it safe and takes the kernels that run fastest, whatever the order they add
    in, so that weights then repeat only nearly. `compiled` lets torch compile the network first, for each size of
    images; it is meant for long trainings. With `stretches`, training goes on from what is saved there, and is saved.
    """
    device = torch.device(device)
    check_pairs(images, labels)
    if images.ndim == SERIES:
        check_for_series(recipe)
    pixels, targets = as_tensor(images).to(device), as_tensor(labels).to(device, torch.int64)
    module.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = make_optimizer(module, recipe, fused=device.type == "cuda")
    generator = torch.Generator().manual_seed(recipe.seed)
    network = compile_network(module) if compiled else module
    state = module, optimizer, generator
    done = 0 if stretches is None else stretches.restore(*state, recipe)
    with torch.backends.cudnn.flags(enabled=True, benchmark=bf16, deterministic=not bf16):
        for epoch in range(done, recipe.epochs):
            mean = train_epoch(network, pixels, targets, recipe, optimizer, generator, epoch, bf16)
            if not math.isfinite(mean):
                raise UserError(f"training diverged in epoch {epoch + 1} (loss {mean}): lower the recipe's lr")
            if on_progress is not None:
                on_progress(epoch + 1, recipe.epochs, mean)
            if stretches is not None:
                stretches.save_if_due(*state, epoch + 1)
    return module.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def train_epoch(
    module: Callable[[Tensor], Tensor],
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
    side = side_of(recipe, pixels.shape[1], (epoch + 1) / recipe.epochs) if pixels.ndim > SERIES else None
    pairings = draw_pairings(steps, recipe.pairs, generator)
    total = torch.zeros((), device=pixels.device)
    for step, (x, index) in enumerate(draw_batches(pixels, size, recipe, generator, side)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, (epoch + step / steps) / recipe.epochs)
        x, share = mix_pairs(x, pairings[step])
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=bf16):
            logits = module(x).float()
        loss = compute_loss(logits, targets[index], recipe)
        if share < 1:
            loss = share * loss + (1 - share) * compute_loss(logits, targets[index].roll(1, 0), recipe)
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
    batch: int | None = None,
) -> float:
    """Return the share of images that `module`, in evaluation mode and on `device`, classifies rightly.

    Unless told, it reads 500 small images at once, or as many as have 2^19 pixels.
    """
    check_pairs(images, labels)
    was_training = module.training
    module.to(device).eval()
    correct = torch.zeros((), dtype=torch.int64, device=device)
    batch = batch or min(500, max(1, 2**19 // (images.shape[1] * images.shape[2])))
    for start in range(0, len(images), batch):
        chosen = slice(start, start + batch)
        predicted = module(read_batch(images[chosen], device)).argmax(1)
        correct += (predicted == as_tensor(labels[chosen]).to(device)).sum()
    module.train(was_training)
    return int(correct) / len(images)


def check_pairs(images: NDArray[Any] | Tensor, labels: NDArray[Any] | Tensor) -> None:
    """Refuse images without as many labels, and images that no network reads."""
    if len(images) != len(labels) or len(images) == 0:
        raise UserError(f"{len(images)} images and {len(labels)} labels: give as many of each, at least one")
    if images.ndim != SERIES or images.dtype not in (np.float32, torch.float32):
        to_input(images[:1])  # refuses what is not uint8 [n, H, W, 3]


def check_for_series(recipe: Recipe) -> None:
    """Refuse what a recipe does to images only."""
    if recipe.augment != "none":
        raise UserError(f"recipe: augment={recipe.augment} is for images: use augment=none for series")
    if recipe.pairs or recipe.start_size < 1:
        raise UserError("recipe: pairs and start_size are for images: leave them out for series")


def make_optimizer(module: nn.Module, recipe: Recipe, fused: bool) -> torch.optim.Optimizer:
    """Return the recipe's optimiser of all parameters; `fused` is for speed on CUDA.

    AdamW leaves vectors (biases, scales and shifts of normalisation layers) without decay, as is usual with it.
    """
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, "fused": fused}
    if recipe.optimizer == "adamw":
        matrices, vectors = ([p for p in module.parameters() if (p.ndim > 1) == several] for several in (True, False))
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW([group for group in groups if group["params"]], **options)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), **options)
    return torch.optim.SGD(module.parameters(), momentum=recipe.momentum, nesterov=recipe.momentum > 0, **options)


def compute_loss(logits: Tensor, targets: Tensor, recipe: Recipe) -> Tensor:
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
