"""One epoch of training images in random order, cropped, mirrored and mixed at random."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.models import augmix
from fedctta.models.inputs import read_batch
from fedctta.training.recipe import Recipe

PAD, LARGE = 4, 64
"""The black border, in pixels, within which a random crop may move; sides from `LARGE` on have an eighth of theirs."""


def border(height: int) -> int:
    """Return the width of the border.

    >>> border(32), border(48), border(128)
    (4, 4, 16)
    """
    return PAD if height < LARGE else height // 8


def draw_batches(
    pixels: Tensor, size: int, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch as (what the network reads [views * size, 3, H, W], the images' indices), in random order.

    Images left over after the last whole batch wait for another epoch. All of an epoch's chances are drawn at once.
    """
    n, height, width = pixels.shape[:3]
    order, shift, flip = draw_chances(n, generator, pixels.device, border(height))
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
            views.insert(0, read_batch(images))
        yield views[0] if len(views) == 1 else torch.cat(views), index


def draw_chances(
    n: int, generator: torch.Generator, device: torch.device, pad: int = PAD
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw an epoch's order[n], shift[n, 2] and flip[n] of n images with a border of `pad` pixels.

    They are drawn on the CPU, so that every device sees the same ones.
    """
    order = torch.randperm(n, generator=generator)
    shift = torch.randint(2 * pad + 1, (n, 2), generator=generator)
    flip = torch.randint(2, (n,), generator=generator, dtype=torch.bool)
    return order.to(device), shift.to(device), flip.to(device)


def crop_and_flip(images: Tensor, shift: Tensor, flip: Tensor) -> Tensor:
    """Cut each image [B, H, W, 3] out of its black-padded self at `shift` [B, 2]; mirror it where `flip` [B].

    Shift (0, 0) is the top left corner of the padded image and, with p = `border(H)`, (p, p) the image itself.
    """
    size, height, width = images.shape[:3]
    pad = border(height)
    padded = F.pad(images, (0, 0, pad, pad, pad, pad))
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flip[:, None], columns.flip(0), columns)
    which = torch.arange(size, device=images.device)[:, None, None]
    return padded[which, (rows + shift[:, :1])[:, :, None], (columns + shift[:, 1:])[:, None, :]]
