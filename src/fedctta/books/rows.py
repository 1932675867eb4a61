"""One row of a book: all that is remembered of one domain, as sums over images.

Every image of the domain adds, with the weight that it is of this domain:

    images     1
    look       f, the twelve numbers of `core.appearance`
    square     f^2
    scored     w, if the three weights were compared on it: the less, the less was known
    doubt      w times the entropy of the prediction with each weight, if scored
    unusual    w t S with each weight, if scored: how unusual the classes are that are predicted (see `weights`)
    classes    what the source model predicts, if scored; class j counts in bin j mod 16
    shares     what is predicted with each weight, if scored, by the same bins. A device sends neither of the two
    measured   1, if it passed the model with the largest weight
    moments    if so, z and e of every channel c of every BatchNorm layer, means over the batch:
               z = (m - mean_c) / s_c,    e = (v + (m - mean_c)^2 - var_c) / s_c^2,    s_c^2 = var_c + 1e-5
               with m and v the batch's mean and variance, and mean_c and var_c the source's
    trained    1, if scales and shifts were learnt on it
    learnt     what the device has learnt in the domain, minus the source's, times `trained`: for a mean over devices

Since a row holds sums, adding two rows merges what two devices know of a domain. z = e = 0 is the source model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedctta.core.appearance import NUMBERS
from fedctta.core.network import Network, Tensors

BINS = 16
WEIGHTS = (0.0, 0.5, 1.0)
"""Weights that are compared, as shares of the largest: 0 is the source's statistics."""

OWN = ("classes", "shares")
"""Sums that never leave the device."""

SINGLE = ("images", "scored", "measured", "trained")
LEAST = 1e-4  # of the source's variance: noise and rounding may carry a variance below zero
SMALLEST = 1e-5  # added to the source's variance: a channel that was always zero has no scale


@dataclass(frozen=True)
class Layout:
    """Where the sums stand in a row, for a model with so many BatchNorm channels and so many numbers to learn."""

    channels: int
    learnt: int = 0

    @cached_property
    def parts(self) -> dict[str, slice]:
        """The columns of every sum."""
        widths = {
            "images": 1,
            "look": NUMBERS,
            "square": NUMBERS,
            "scored": 1,
            "doubt": len(WEIGHTS),
            "unusual": len(WEIGHTS),
            "classes": BINS,
            "shares": len(WEIGHTS) * BINS,
            "measured": 1,
            "trained": 1,
            "moments": 2 * self.channels,
            "learnt": self.learnt,
        }
        found, start = {}, 0
        for name, width in widths.items():
            found[name] = slice(start, start + width)
            start += width
        return found

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return int(self.parts["learnt"].stop)

    @property
    def short(self) -> int:
        """Numbers in a row apart from moments and what is learnt, which come last."""
        return int(self.parts["moments"].start)

    def of(self, rows: Tensor, name: str) -> Tensor:
        """Return the sums of that name in rows[..., S]; single numbers without an axis of their own."""
        found = rows[..., self.parts[name]]
        return found.squeeze(-1) if name in SINGLE else found

    def without_own(self, rows: Tensor) -> Tensor:
        """Return rows[..., S] without the sums that never leave the device: zeros stand there."""
        part = rows.clone()
        for name in OWN:
            part[..., self.parts[name]] = 0
        return part

    def row(self, like: Tensor, **sums: Tensor) -> Tensor:
        """Return a row[S] with the sums given, and zeros elsewhere."""
        flat = {name: value.reshape(-1) for name, value in sums.items()}
        pieces: list[Tensor] = []
        gap = 0
        for name, part in self.parts.items():
            if name not in flat:
                gap += part.stop - part.start
                continue
            pieces += [like.new_zeros(gap), flat[name]] if gap else [flat[name]]
            gap = 0
        return torch.cat([*pieces, like.new_zeros(gap)] if gap else pieces)


def layout_of(network: Network, width: int | None = None) -> Layout:
    """Return the layout of rows of a model; what is not statistics in rows of this width is learnt."""
    channels = sum(len(network.state[f"{name}.running_mean".removeprefix(".")]) for name in network.norms)
    return Layout(channels, 0 if width is None else width - Layout(channels).width)


@dataclass(frozen=True)
class Scale:
    """The source's statistics of all BatchNorm layers side by side: what moments are measured in."""

    names: tuple[str, ...]  # of the layers
    widths: tuple[int, ...]
    mean: Tensor
    var: Tensor

    @cached_property
    def square(self) -> Tensor:
        """s^2 of every channel."""
        return self.var + SMALLEST

    @cached_property
    def deviation(self) -> Tensor:
        """S of every channel."""
        return self.square.sqrt()

    @cached_property
    def least(self) -> Tensor:
        """The least variance of every channel."""
        return LEAST * self.var

    @cached_property
    def layout(self) -> Layout:
        """The layout of rows."""
        return Layout(len(self.mean))

    def encode(self, mean: Tensor, var: Tensor) -> Tensor:
        """Return z and e of statistics[D], side by side."""
        apart = mean - self.mean
        return torch.cat([apart / self.deviation, (var + apart.square() - self.var) / self.square], -1)


_SCALES: WeakKeyDictionary[Network, tuple[tuple[Tensor, ...], Scale]] = WeakKeyDictionary()


def read_scale(network: Network) -> Scale:
    """Return the source's statistics of a model, computed once as long as these are the same tensors."""
    tensors = tuple(network.statistics.values())
    known, scale = _SCALES.get(network, ((), None))
    if scale is None or len(known) != len(tensors) or any(a is not b for a, b in zip(known, tensors, strict=True)):
        scale = _read_scale(network)
        _SCALES[network] = tensors, scale
    return scale


def _read_scale(network: Network) -> Scale:
    means = [network.statistics[f"{name}.running_mean".removeprefix(".")] for name in network.norms]
    variances = [network.statistics[f"{name}.running_var".removeprefix(".")] for name in network.norms]
    nothing = torch.zeros(0, device=network.device)
    return Scale(
        network.norms,
        tuple(len(mean) for mean in means),
        torch.cat(means) if means else nothing,
        torch.cat(variances) if variances else nothing,
    )


def encode_statistics(scale: Scale, statistics: Tensors) -> Tensor:
    """Return z and e of the statistics that a pass has kept, by layer."""
    if not scale.names:
        return scale.mean
    names = [name.removeprefix(".") for name in scale.names]
    prefix = [f"{name}." if name else "" for name in names]
    both = torch.cat([statistics[f"{p}{kind}"] for kind in ("running_mean", "running_var") for p in prefix])
    return scale.encode(*both.chunk(2))
