"""One epoch of training images in random order, cropped, resized, mirrored and mixed at random."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.models import augmix
from fedctta.models.inputs import read_batch
from fedctta.training.recipe import Recipe

PAD, LARGE = 4, 64
"""The black border, in pixels, within which a random crop may move; sides from `LARGE` on have an eighth of theirs."""

AREA, RATIO = (0.35, 1.0), (3 / 4, 4 / 3)
"""Of a part of an image that is enlarged: its share of the image, and its width over its height."""


def border(height: int) -> int:
    """Return the width of the border.

    >>> border(32), border(48), border(128)
    (4, 4, 16)
    """
    return PAD if height < LARGE else height // 8


def draw_batches(
    pixels: Tensor, size: int, recipe: Recipe, generator: torch.Generator, side: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch as (what the network reads [views * size, 3, H, W], the images' indices), in random order.

    With `side`, images are shrunk to `side` rows, and columns in proportion. Images left over after the last whole
    batch wait for another epoch. All of an epoch's chances are drawn at once.
    """
    n, height, width = pixels.shape[:3]
    form = (height, width) if side is None else (side, round(width * side / height))
    order, shift, flip = draw_chances(n, generator, pixels.device, border(height))
    parts = draw_parts(n, generator).to(pixels.device) if recipe.augment == "resized" else None
    mixes = 0 if recipe.augment != "augmix" else 2 if recipe.consistency else 1
    plans = [augmix.draw(n, height, width, generator).to(pixels.device) for _ in range(mixes)]
    for start in range(0, n - size + 1, size):
        chosen = slice(start, start + size)
        index = order[chosen]
        images = pixels[index]
        if parts is not None:
            yield enlarge_part(images, parts[chosen], flip[chosen], form), index
            continue
        if recipe.augment != "none":
            images = crop_and_flip(images, shift[chosen], flip[chosen])
        views = [augmix.mix(images.movedim(-1, 1), plan.part(chosen)) for plan in plans]
        if mixes != 1:
            views.insert(0, read_batch(images))
        x = views[0] if len(views) == 1 else torch.cat(views)
        yield x if side is None else shrink(x, form), index


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


def draw_parts(n: int, generator: torch.Generator) -> Tensor:
    """Draw n parts [n, 4] (centre x, centre y, half width, half height) of the square [-1, 1]^2.

    Their area is uniform in `AREA` of the square and the logarithm of their width over height in that of `RATIO`, as in
    Inception's crops; what would be longer than the square's side has its side.
    """
    area = AREA[0] + (AREA[1] - AREA[0]) * torch.rand(n, generator=generator)
    low, high = (math.log(ratio) for ratio in RATIO)
    ratio = torch.exp(low + (high - low) * torch.rand(n, generator=generator))
    half = torch.stack(((area * ratio).sqrt(), (area / ratio).sqrt()), 1).clamp(max=1)
    centre = (1 - half) * (2 * torch.rand(n, 2, generator=generator) - 1)
    return torch.cat((centre, half), 1)


def enlarge_part(images: Tensor, parts: Tensor, flip: Tensor, form: tuple[int, int]) -> Tensor:
    """Cut a part [B, 4] out of each image [B, H, W, 3] and resize it to `form` (bilinear); mirror it where `flip` [B].

    Returns what a network reads, in channels-last memory.
    """
    x, zero = read_batch(images), torch.zeros_like(parts[:, 0])
    centre_x, centre_y, half_width, half_height = parts.unbind(1)
    half_width = torch.where(flip, -half_width, half_width)
    theta = torch.stack((half_width, zero, centre_x, zero, half_height, centre_y), 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [len(x), 1, *form], align_corners=False)
    out = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return out.contiguous(memory_format=torch.channels_last)


def shrink(x: Tensor, form: tuple[int, int]) -> Tensor:
    """Resize [B, 3, H, W] to `form`, over all pixels that fall into one; images of that form stay as they are."""
    if x.shape[2:] == form:
        return x
    smaller = F.interpolate(x, form, mode="bilinear", antialias=True, align_corners=False)
    return smaller.contiguous(memory_format=torch.channels_last)


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
