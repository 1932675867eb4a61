"""Random views of images: jittered colours, a small turn, shift and zoom, perhaps blur and noise.

    colours     brightness 1 +- 0.4, contrast 1 +- 0.3, saturation 1 +- 0.5, gamma 1 +- 0.3, hue +- 0.06 of a turn, in a
                random order, values held in [0, 1] after each
    geometry    rotation +- 15 degrees, shift by whole pixels up to 1/8 of the image, zoom 0.9 to 1.1, about the centre;
                mirrored or not, bilinear
    blur        Gaussian, 5x5, sigma 0.001 to 0.5         (kind "cotta" only)
    noise       N(0, 0.005^2) at every pixel              (kind "cotta" only)

Everything is drawn uniformly, once for the whole batch: a key is a view. Beyond its border the image continues as its
edge (kind "cotta") or as its mirror image (kind "roid"). CoTTA pads by half an image, transforms and cuts the middle
out: the padding's own border stays out of sight from 20 pixels on, so here only the middle is computed.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters.common.fused_views import add_noise_fused, can_fuse_views, jitter_fused
from fedctta.core.randomness import fork, fork_all, uniform

Kind = Literal["cotta", "roid"]
_BLUR_RADIUS = 2


def augment(x: Tensor, key: Tensor, kind: Kind = "cotta") -> Tensor:
    """Return one view of images x[B, 3, H, W] in [0, 1]: pure, alike for all of them, and vmappable over x and key."""
    colours, order, places = uniform(fork_all(key, (1, 2, 3)), (6,)).to(x.dtype).unbind()
    x = jitter(x, 2 * colours[:5] - 1, order[:5].argsort())
    angle, across, down, zoom, mirrored, sigma = (2 * places - 1).unbind()
    turn = (angle * math.radians(15), (across * (x.shape[-1] / 8)).round(), (down * (x.shape[-2] / 8)).round())
    flip = torch.where(mirrored < 0, -1.0, 1.0)
    if kind == "roid":
        return move(x, *turn, 1 + 0.1 * zoom, flip, "reflection").clamp(0, 1)
    x = move(x, *turn, 1 + 0.1 * zoom, flip, "border", margin=_BLUR_RADIUS)
    x = blur(x, 0.2505 + 0.2495 * sigma)
    if can_fuse_views(x):
        return add_noise_fused(x, fork(key, 4), 0.005)
    return (x + 0.005 * noise(fork(key, 4), x)).clamp(0, 1)


def view_keys(key: Tensor, count: int) -> Tensor:
    """Return keys[count] of independent views."""
    return fork(key + torch.arange(count, device=key.device), 5)


def views(x: Tensor, key: Tensor, kind: Kind = "cotta", count: int = 32) -> Tensor:
    """Return V views [V, B, 3, H, W] of x[B, 3, H, W], each drawn independently."""
    drawn: Tensor = torch.func.vmap(lambda one: augment(x, one, kind))(view_keys(key, count))
    return drawn


def jitter(x: Tensor, strength: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation, gamma and hue by strength[5] in [-1, 1], operation i as number order[i].

    Values are held in [0, 1] before, too. An order that differs from client to client cannot decide what is run under
    vmap, so each of the five steps does everything, at strength 0 except for the current operation.
    """
    steps = torch.arange(5, device=x.device)
    brightness, contrast, saturation, gamma, hue = (strength * (order == steps[:, None])).unbind(1)
    factor = 1 + 0.4 * brightness + 0.3 * contrast + 0.5 * saturation
    to_grey, to_mean, power, turn = -0.5 * saturation, -0.3 * contrast, 1 + 0.3 * gamma, 0.06 * hue
    if can_fuse_views(x):
        return jitter_fused(x, torch.stack([factor, to_grey, to_mean, power, turn], -1))
    x = x.clamp(0, 1).contiguous()
    for k in range(5):
        red, green, blue = x.unbind(1)
        grey = torch.add(torch.add(0.2989 * red, green, alpha=0.587), blue, alpha=0.114)
        added = torch.addcmul(to_mean[k] * grey.mean((1, 2), keepdim=True), grey, to_grey[k])
        x = torch.addcmul(added.unsqueeze(1), x, factor[k]).clamp(0, 1) ** power[k]
        x = turn_hue(x, turn[k])
    return x


def turn_hue(x: Tensor, by: Tensor) -> Tensor:
    """Turn the hue of x[B, 3, H, W] by a part of the circle, at the same HSV saturation and value."""
    red, green, blue = x.unbind(1)
    value = x.amax(1)
    chroma = value - x.amin(1)
    # Which channel is the largest, as weights: masks are slow on a CPU.
    not_red, not_green = (value > red).to(x.dtype), (value > green).to(x.dtype)
    is_blue = not_red * not_green
    is_green = not_red - is_blue
    slope = torch.addcmul((1 - not_red) * (green - blue), is_green, blue - red).addcmul(is_blue, red - green)
    sixths = slope / chroma.clamp_min(torch.finfo(x.dtype).tiny)
    sixths = torch.add(torch.add(sixths, is_green, alpha=2), is_blue, alpha=4)
    # A channel lies below the value by a share of the chroma: none up to one sixth of the circle from its own hue, all
    # from two sixths on.
    own = torch.arange(5, 0, -2, device=x.device).view(3, 1, 1)
    away = (((own + (sixths + (6 * by - 2)).unsqueeze(1)).abs() - 3).abs() - 3).abs()
    return torch.addcmul(value.unsqueeze(1), chroma.unsqueeze(1), (2 - away).clamp(0, 1), value=-1)


def move(
    x: Tensor, angle: Tensor, across: Tensor, down: Tensor, zoom: Tensor, flip: Tensor, beyond: str, margin: int = 0
) -> Tensor:
    """Turn clockwise by radians, zoom, shift by pixels, then mirror (flip = -1), with a margin of pixels on each side.

    The pixel (u, v) of the result, counted from the centre, is read at (u' cos + v' sin, v' cos - u' sin) / zoom with
    u' = flip u - across and v' = v - down.
    """
    height, width = x.shape[-2:]
    v, u = (
        torch.arange(-margin, size + margin, device=x.device, dtype=x.dtype) - (size - 1) / 2
        for size in (height, width)
    )
    u, v = flip * u - across, v[:, None] - down
    sin, cos = angle.sin() / zoom, angle.cos() / zoom
    grid = torch.stack(
        [(cos * u + sin * v) / max((width - 1) / 2, 0.5), (cos * v - sin * u) / max((height - 1) / 2, 0.5)], -1
    )
    return F.grid_sample(x, grid.expand(len(x), *grid.shape), padding_mode=beyond, align_corners=True)


def blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Return x[B, C, H, W] under a Gaussian of 5x5 pixels, two pixels less at each side."""
    rows, columns = (_band(size, sigma) for size in x.shape[-2:])
    return rows @ x @ columns.mT


def _band(size: int, sigma: Tensor) -> Tensor:
    """Return the matrix [size - 4, size] that blurs a line of pixels."""
    places = torch.arange(size, device=sigma.device)
    offset = places - places[: size - 2 * _BLUR_RADIUS, None] - _BLUR_RADIUS
    weight = torch.exp(-0.5 * (offset / sigma).square()) * (offset.abs() <= _BLUR_RADIUS)
    return weight / weight.sum(-1, keepdim=True)


def noise(key: Tensor, like: Tensor) -> Tensor:
    """Return standard normal numbers, coarse but cheap: Box and Muller's pair from 12 + 12 bits of one number."""
    half = (like.numel() + 1) // 2
    number = uniform(key, (half,), 0, 4096)
    whole = number.floor()
    radius, angle = (-2 * torch.log((whole + 0.5) / 4096)).sqrt(), 2 * math.pi * (number - whole)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[: like.numel()].view_as(like).to(like.dtype)
