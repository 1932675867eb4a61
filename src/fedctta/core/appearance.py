"""What a batch of images looks like, in twelve numbers that tell corruptions and styles apart and classes hardly.

With l the mean over an image's channels, c the rest of every channel, and k_uv the nine products of the rows
(1 1 1) / sqrt 3, (1 0 -1) / sqrt 2 and (1 -2 1) / sqrt 6, down and across:

    e_uv = mean over pixels of (k_uv * l)^2, for u = v = 0 the variance instead           power at nine frequencies
    f_ab = sum_uv (k_ab)_uv log(e_uv + g^2)                                               a, b = 0, 1, 2
    f_9  = log(mean over pixels and channels of |grad c|^2 + g^2)                         how colours change
    f_10 = mean over pixels of l                                                          how light it is
    f_11 = log(share of pixels p with |l(p) - l(pixel below p)| < g/2, + 0.01)            how flat it is

g is one grey level of 255. Of series with channels in three groups of neighbours, and lags of 1, 4 and 16 steps:

    e_uv = mean over time and the channels of group u of (x(t + lag_v) - x(t))^2         power at three speeds
    f_9  = log(mean over channels of (mean over time)^2 + g^2)                           how far from zero, g = 0.01
    f_10 = mean over time and channels of x                                               where it stands
    f_11 = log(share of channels and times with |x(t + 1) - x(t)| < g, + 0.01)            how often it rests

Logarithms of power are nearly normal over images, and using the rows again on their 3 x 3
table makes them nearly uncorrelated, so that a mean and a variance of each number say what a batch looks like and how
sure that is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.gpu_kernels import can_fuse

NUMBERS = 12
ROWS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
GREY = 1 / 255
SERIES = 3  # axes of a batch of series
LAGS = (1, 4, 16)
STEADY = 0.01
SELDOM = 0.01  # added to a share before its logarithm is taken
ALONE = 1.0  # the variance over images that a single image is taken to show


def appearance(x: Tensor) -> Tensor:
    """Return f[B, 12] of images x[B, C, H, W], or of series x[B, C, T]."""
    return of_series(x) if x.ndim == SERIES else of_images(x)


def of_images(x: Tensor) -> Tensor:
    """Return f[B, 12] of images x[B, C, H, W]."""
    if can_fuse(x) and not torch.is_grad_enabled():
        looks: Tensor = _Look.apply(x)  # type: ignore[no-untyped-call]
        return looks
    sums = sum_up(x)
    pixels, below = x.shape[2] * x.shape[3], max(1, (x.shape[2] - 1) * x.shape[3])
    power, level, change, flat = sums[:, :9], sums[:, 9] / pixels, sums[:, 10], sums[:, 11]
    steady = level.square() * pixels
    rows = _rows(x.device, x.dtype)
    table = ((power - F.pad(steady.unsqueeze(1), (0, 8))).clamp_min(0) * rows[0].square() / pixels + GREY**2).log()
    change = (change / x[0].numel() + GREY**2).log()
    others = torch.stack([change, level / 9, (flat / below + SELDOM).log()], 1)
    return torch.cat([table @ rows[1], others], 1)


def sum_up(x: Tensor) -> Tensor:
    """Return sums[B, 12] over the pixels of images x[B, C, H, W].

    Of the squared answers to nine products of rows, not yet divided by their norms; of the first answer, nine times
    light, as every pixel is in nine windows; of |grad c|^2; and how many pixels are as light as the one below.
    """
    x = x if x.is_cuda else x.contiguous()  # a CPU adds up planes twice as fast as neighbours
    light = x.mean(1, keepdim=True)
    down = torch.cat(answer(F.pad(light, (1, 1, 1, 1), mode="replicate"), 2), 1)  # [B, 3, H, W + 2]
    across = answer(down, 3)
    power = torch.stack([_power(t, (2, 3)) for t in across], 2).flatten(1)
    level = across[0][:, 0].sum((1, 2))
    colour = x - light
    change = _power(colour.diff(dim=3), (1, 2, 3)) + _power(colour.diff(dim=2), (1, 2, 3))
    flat = (light.diff(dim=2).abs() < GREY / 2).flatten(1).sum(1)
    return torch.cat([power, torch.stack([level, change, flat.to(x.dtype)], 1)], 1)


class _Look(torch.autograd.Function):
    """`of_images` in one pass, without a gradient. Vmapped, there are axes in front."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        from fedctta.core.appearance_kernel import look, tell

        leads = x.shape[:-4]
        wide = x[(None,) * max(0, 2 - len(leads))]
        wide = wide.flatten(0, len(leads) - 2) if len(leads) > 2 else wide
        looks = tell(look(wide, GREY / 2), *_rows(x.device, x.dtype), tuple(x.shape[-3:]), GREY, SELDOM)
        return looks.view(*leads, x.shape[-4], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor) -> tuple[Tensor, int]:
        return _Look.apply(x.movedim(in_dims[0] or 0, 0)), 0  # type: ignore[no-untyped-call]


def of_series(x: Tensor) -> Tensor:
    """Return f[B, 12] of series x[B, C, T]."""
    channels, time = x.shape[1:]
    x = x if channels >= 3 else x[:, [0, channels // 2, channels - 1]]
    x = x if time > 1 else x.expand(-1, -1, 2)
    lags = [min(lag, x.shape[2] - 1) for lag in LAGS]
    steps = [(x[:, :, lag:] - x[:, :, :-lag]).square().mean(2).tensor_split(3, 1) for lag in lags]
    table = [step[group].mean(1) for group in range(3) for step in steps]
    level = x.mean(2)
    floor = STEADY**2
    far = (level.square().mean(1) + floor).log()
    _, rows = _rows(x.device, x.dtype)
    others = torch.stack([far, level.mean(1), _rest(x, 2, STEADY)], 1)
    return torch.cat([(torch.stack(table, 1) + floor).log() @ rows, others], 1)


def answer(t: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Answer the three rows, not yet divided by their norms, along `dim` of length L + 2, which is left with L."""
    length = t.shape[dim] - 2
    a, b, c = (t.narrow(dim, start, length) for start in range(3))
    outer = a + c
    return outer + b, a - c, torch.sub(outer, b, alpha=2)


def _power(t: Tensor, over: tuple[int, ...]) -> Tensor:
    """Return the sum of squares, without a copy of t."""
    total: Tensor = torch.linalg.vector_norm(t, dim=over).square()
    return total


def _rest(t: Tensor, dim: int, step: float) -> Tensor:
    """Return the logarithm[B] of the share of neighbours along `dim` that differ by less than `step`."""
    small = (t.diff(dim=dim).abs() < step).flatten(1)
    return (small.sum(1) / max(1, small.shape[1]) + SELDOM).log()


@lru_cache
def _rows(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return 1 / norm[9] of the nine products of rows, and the products [uv, ab] themselves."""
    rows = torch.tensor(ROWS, device=device, dtype=dtype)
    scale = 1 / rows.norm(dim=1)
    rows = rows * scale[:, None]
    return torch.outer(scale, scale).flatten(), torch.kron(rows, rows).T.contiguous()


def of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean[12] and variance[12] over the images of x[B, C, H, W]."""
    looks = appearance(x)
    return looks.mean(0), looks.var(0) if len(looks) > 1 else torch.full_like(looks[0], ALONE)
