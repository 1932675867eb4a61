"""AugMix (Hendrycks et al., 2020) for whole batches: chains of simple operations, mixed with the image itself.

    mix(x) = (1 - m) x + m sum_i w_i chain_i(x),    w ~ Dirichlet(1, 1, 1),  m ~ Beta(1, 1)

Each of the three chains applies one to three operations, drawn anew for every image. Every operation is either a table
from old to new pixel values or an affine warp, so one step of all chains of all images is one lookup and one warp;
who drew the other kind has the identity there. No step depends on values the CPU would have to wait for.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.randomness import fork, uniform

WIDTH = 3
DEPTH = 3
SEVERITY = 3.0

OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
IDENTITY = len(OPERATIONS)
"""Stands for no operation at all: what follows the end of a chain."""

TRUNCATION_SLACK = 1 / 1024
"""Warps cut values down to whole ones, as Pillow does; this keeps float32's 41.9999 from becoming 41."""


class Plan(NamedTuple):
    """What happens to each of n images: the steps of its chains, [n, WIDTH, DEPTH], and how the chains are mixed."""

    operation: Tensor
    """int64, an index of OPERATIONS or IDENTITY."""
    keep: Tensor
    """int64, the bits that posterize keeps (255: all)."""
    threshold: Tensor
    """int64, from where solarize inverts (256: nowhere)."""
    warp: Tensor
    """float32 [..., 2, 3], from the place of a new pixel to that of the old one: x' = a x + b y + c and so for y."""
    weights: Tensor
    """float32 [n, WIDTH], each row in the simplex."""
    share: Tensor
    """float32 [n] in [0, 1): how much of the mixture replaces the image."""

    def to(self, device: torch.device | str) -> Plan:
        """Return the plan on `device`."""
        return Plan(*(tensor.to(device) for tensor in self))

    def part(self, chosen: slice) -> Plan:
        """Return the plan of some of the images."""
        return Plan(*(tensor[chosen] for tensor in self))


def draw(n: int, height: int, width: int, generator: torch.Generator) -> Plan:
    """Draw a plan for n images of one size from a generator of the CPU: the same for every device."""
    shape = (n, WIDTH, DEPTH)
    operation = torch.randint(len(OPERATIONS), shape, generator=generator)
    level = 0.1 + (SEVERITY - 0.1) * torch.rand(shape, generator=generator)
    sign = 2 * torch.randint(2, shape, generator=generator) - 1
    depth = torch.randint(1, DEPTH + 1, (n, WIDTH, 1), generator=generator)
    weights = torch.empty(n, WIDTH).exponential_(generator=generator)
    share = torch.rand(n, generator=generator)
    return arrange(operation, level, sign, depth, weights, share, height, width)


def draw_by_key(key: Tensor, n: int, height: int, width: int, severity: float = SEVERITY) -> Plan:
    """Draw a plan for n images of one size as a pure function of a key (see `randomness`): vmappable over keys."""
    shape = (n, WIDTH, DEPTH)
    return arrange(
        uniform(fork(key, 1), shape, 0, len(OPERATIONS)).long(),
        uniform(fork(key, 2), shape, 0.1, severity),
        2 * uniform(fork(key, 3), shape, 0, 2).long() - 1,
        uniform(fork(key, 4), (n, WIDTH, 1), 1, DEPTH + 1).long(),
        -torch.log1p(-uniform(fork(key, 5), (n, WIDTH))),
        uniform(fork(key, 6), (n,)),
        height,
        width,
    )


def arrange(
    operation: Tensor,
    level: Tensor,
    sign: Tensor,
    depth: Tensor,
    weights: Tensor,
    share: Tensor,
    height: int,
    width: int,
) -> Plan:
    """Make a plan of what was drawn: chains end after `depth` steps.

    `weights` are exponentially distributed: scaled to the sum 1, they are Dirichlet(1, 1, 1).
    """
    operation = operation.masked_fill(torch.arange(DEPTH, device=depth.device) >= depth, IDENTITY)
    return Plan(*steps(operation, level / 10, sign, height, width), weights / weights.sum(1, keepdim=True), share)


def steps(
    operation: Tensor, strength: Tensor, sign: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Turn operations of some strength in [0, 1] and a sign into a plan's operation, keep, threshold and warp.

    Posterize leaves 4 - int(4 s) bits and solarize inverts from 256 - int(256 s); rotations are of int(30 s) degrees
    about the centre, shears of 0.3 s from the top left corner, translations of int(s / 3) of the side.
    """

    def where(name: str, drawn: Tensor, otherwise: int) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), drawn, otherwise)

    keep = where("posterize", 256 - 2 ** (4 + (4 * strength).long()), 255)
    threshold = where("solarize", 256 - (256 * strength).long(), 256)
    angle = where("rotate", sign * (30 * strength).trunc() * (math.pi / 180), 0)
    shear_x, shear_y = (where(f"shear_{axis}", sign * 0.3 * strength, 0) for axis in "xy")
    along_x, along_y = (
        where(f"translate_{axis}", sign * (side / 3 * strength).trunc(), 0)
        for axis, side in (("x", width), ("y", height))
    )
    cos, sin, x, y = angle.cos(), angle.sin(), width / 2, height / 2
    rows = (
        torch.stack((cos, shear_x - sin, x - cos * x + sin * y + along_x), -1),
        torch.stack((shear_y + sin, cos, y - sin * x - cos * y + along_y), -1),
    )
    return operation, keep, threshold, torch.stack(rows, -2)


def mix(images: Tensor, plan: Plan) -> Tensor:
    """Return AugMix of uint8 images [B, 3, H, W] as float32 in [0, 1], channels last in memory."""
    return mixture(images, plan).contiguous(memory_format=torch.channels_last)


def mixture(images: Tensor, plan: Plan) -> Tensor:
    """Return AugMix of images [B, 3, H, W] (whole values 0..255) as float32 in [0, 1]; vmappable."""
    size = len(images)
    clean = images.float()
    chains = clean.repeat_interleave(WIDTH, 0)
    for step in range(DEPTH):
        operation, keep, threshold, warps = (tensor[:, :, step].flatten(0, 1) for tensor in plan[:4])
        chains = warp(look_up(chains, operation, keep, threshold), warps)
    weights = plan.weights[:, :, None, None, None]
    mean = (weights * chains.view(size, WIDTH, *images.shape[1:])).sum(1)
    return (torch.lerp(clean, mean, plan.share[:, None, None, None]) / 255).clamp(0, 1)


def look_up(images: Tensor, operation: Tensor, keep: Tensor, threshold: Tensor) -> Tensor:
    """Send each channel of each image [N, C, H, W] (whole values 0..255) through the table of its operation [N].

    Autocontrast stretches the values in use over 0..255. Equalize sends v to the share of pixels below v, in units
    of 1/255 of all pixels but those of the brightest value.
    """
    index = images.flatten(2).long()
    none = torch.zeros((*images.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts = none.scatter_add(2, index, torch.ones_like(index))
    value = torch.arange(256, device=images.device)
    low, high = index.amin(2, keepdim=True), index.amax(2, keepdim=True)

    scale = value[-1] / (high - low).clamp(min=1).double()  # `255 / tensor` would round twice
    stretched = (value * scale - low * scale).long()
    stretched = torch.where(high > low, stretched, value)

    unit = (index.shape[2] - counts.gather(2, high)) // 255
    below = counts.cumsum(2) - counts
    equalized = torch.where(unit > 0, (unit // 2 + below) // unit.clamp(min=1), value)

    operation, keep, threshold = (tensor[:, None, None] for tensor in (operation, keep, threshold))
    table = torch.where(value < threshold, value, 255 - value) & keep
    table = torch.where(operation == OPERATIONS.index("autocontrast"), stretched, table)
    table = torch.where(operation == OPERATIONS.index("equalize"), equalized, table)
    return table.clamp(0, 255).float().gather(2, index).view_as(images)


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Fetch each pixel of each image [N, C, H, W] from where `matrix` [N, 2, 3] says; what lies outside is black.

    Places are in pixels from the top left corner, so a pixel's centre is at one half. Values between pixels are
    bilinear, then cut down to whole ones.
    """
    height, width = images.shape[2:]
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    x = torch.arange(width, device=images.device) + 0.5
    a, b, c, d, e, f = matrix.flatten(1).T[:, :, None, None]
    sides = ((a * x + b * y + c) * (2 / width) - 1, (d * x + e * y + f) * (2 / height) - 1)
    grid = torch.stack(sides, -1)
    inside = ((grid >= -1) & (grid < 1)).all(-1, keepdim=True).movedim(-1, 1)
    found = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return (found + TRUNCATION_SLACK).floor() * inside
