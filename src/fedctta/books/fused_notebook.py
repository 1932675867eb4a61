"""What a device does with its book before and after a pass, by the kernels of `notebook_kernels`: one each on a GPU.

    recognise_fused     `Notebook.recognise`: the belief after a batch, a new domain if none fits, and the page
    blend_fused         what a batch is normalised with, read from the rows at once
    add_fused           `Notebook.add`: a batch's row, added to the domains that it is of
    lack_fused          whether too little is known of a batch's domain

There are no gradients. The kernels compute what plain torch does up to rounding, and serve a book of up to `MOST`
domains and batches of up to `LARGEST` images; plain torch is used elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedctta.core.gpu_kernels import KernelFunction, can_fuse
from fedctta.core.network import Tensors

MOST = 128  # domains whose short rows one program keeps in registers
LARGEST = 1024  # images of a batch whose looks it does
SMALL = ("changed", "name", "held", "belief", "usual", "last", "received", "time", "batches", "key")


def can_fuse_book(rows: Tensor, images: int = 1) -> bool:
    """Whether kernels may serve a book with rows[K, S], inside vmap or not."""
    return can_fuse(rows) and not torch.is_grad_enabled() and len(rows) <= MOST and images <= LARGEST


class Filter(NamedTuple):
    """The numbers of `recognise_fused` that are no tensors."""

    hazard: float
    tolerance: float
    unknown: float  # evidence against a domain not met
    rate: float  # of fading, in halvings an image, below 0
    lately: int
    floor: float
    least: float
    pull: float
    tiny: float
    look: int  # the first column of looks
    short: int  # columns of a short row


def recognise_fused(private: Tensors, looks: Tensor, numbers: Filter) -> tuple[Tensors, tuple[Tensor, Tensor, Tensor]]:
    """Return the private tensors that a batch with looks[B, 12] changes; short rows, and what is left of both parts."""
    small = [private[name] for name in SMALL]
    new = _Recognise.apply(looks, private["part"], private["book"], *small, [*numbers])  # type: ignore[no-untyped-call]
    changed = ("belief", "usual", "last", "name", "held", "time", "batches")
    return dict(zip(changed, new, strict=False)), new[len(changed) :]


def blend_fused(
    private: Tensors,
    weights: Tensor,
    left: tuple[Tensor, Tensor],
    measured: Tensor,
    images: Tensor,
    prior: float,
    columns: slice,
) -> tuple[Tensor, Tensor]:
    """Return sum_k c_k Z_k and B sum_k c_k of `blending`; `left` says what is left of both parts' rows."""
    tensors = (private["belief"], weights, *left, measured, private["part"], private["book"], images)
    known, batch = _BlendRows.apply(*tensors, prior, columns.start, columns.stop)  # type: ignore[no-untyped-call]
    return known, batch


def add_fused(private: Tensors, row: Tensor, kept: Tensor, heed: float) -> Tensors:
    """Return part and changed after a row[S] was added where beliefs are above `heed`."""
    tensors = (private["part"], row, private["belief"], kept, private["changed"], private["time"])
    part, changed = _Add.apply(*tensors, heed)  # type: ignore[no-untyped-call]
    return {"part": part, "changed": changed}


class Wants(NamedTuple):
    """When too little is known of a domain of n images, s of them scored and m measured.

    It is compared in every batch `gap`, or while s = 0, if s < review_rate log2(1 + n / 32); and measured, if its
    weight is at most `nearly`, while m < max(min(survey n, enough), min(n, soon)). `rate` is that of fading.
    """

    rate: float
    nearly: float
    review_rate: float
    soon: float
    survey: float
    enough: float
    gap: int
    images: int  # the columns
    scored: int
    measured: int


def lack_fused(private: Tensors, wants: Wants) -> tuple[Tensor, Tensor]:
    """Return whether the likeliest domain is to be compared, and whether it is to be measured."""
    names = ("part", "book", "changed", "held", "belief", "weights", "received", "time", "batches")
    compare, measure = _Lack.apply(*(private[name] for name in names), [*wants])  # type: ignore[no-untyped-call]
    return compare, measure


def _flatten(leads: int, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors with one axis, of all clients, in place of so many, without gaps."""
    return [t.reshape(-1, *t.shape[leads:]).contiguous() for t in tensors]


def _as_rows(leads: int, rows: Tensor) -> Tensor:
    """Return rows[N, K, S] of all clients; a kernel knows the steps between them."""
    rows = rows.reshape(-1, *rows.shape[leads:])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


class _Recognise(KernelFunction):
    """Vmapped, there are axes in front."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        from fedctta.books import notebook_kernels

        looks, part, book, *small, values = arguments
        leads, numbers = looks.dim() - 2, Filter(*values)
        axes, domains = looks.shape[:leads], part.shape[-2]
        named = dict(zip(SMALL, small, strict=True))
        shapes = [named[name] for name in ("belief", "usual", "last", "name", "held", "time", "batches")]
        new = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in shapes]
        new += [part.new_empty(*axes, domains, numbers.short)]
        new += [part.new_empty(*axes, domains), part.new_empty(*axes, domains)]
        fixed = dict(zip(("LATELY", "FLOOR", "LEAST", "PULL", "TINY", "LOOK"), numbers[4:10], strict=True))
        (flat,) = _flatten(leads, (looks,))
        rows = _as_rows(leads, part), _as_rows(leads, book)
        notebook_kernels.recognise(flat, rows, _flatten(leads, small), new, numbers[:4], fixed, numbers.short)
        return tuple(new)


class _BlendRows(KernelFunction):
    """Vmapped, there are axes in front."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        from fedctta.books import notebook_kernels

        *small, measured, part, book, images, prior, start, stop = arguments
        leads = part.dim() - 2
        axes = part.shape[:leads]
        worth, measured = images.reshape(-1), measured.reshape(-1, measured.shape[-1])
        rows = _as_rows(leads, part), _as_rows(leads, book)
        found = notebook_kernels.blend(_flatten(leads, small), measured, rows, worth, prior, slice(start, stop))
        return found[0].view(*axes, -1), found[1].view(axes)


class _Add(KernelFunction):
    """Vmapped, there are axes in front."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        from fedctta.books import notebook_kernels

        part, row, *small, heed = arguments
        leads = part.dim() - 2
        (flat,) = _flatten(leads, (row,))
        new = notebook_kernels.add(_as_rows(leads, part), flat, _flatten(leads, small), heed)
        return new[0].view(part.shape), new[1].view(small[2].shape)


class _Lack(KernelFunction):
    """Vmapped, there are axes in front."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        from fedctta.books import notebook_kernels

        part, book, *small, values = arguments
        leads, wants = part.dim() - 2, Wants(*values)
        rows = _as_rows(leads, part), _as_rows(leads, book)
        found = torch.empty(2, len(rows[0]), dtype=torch.bool, device=part.device)
        notebook_kernels.lack(rows, _flatten(leads, small), found, wants[:6], wants.gap, wants[7:])
        compare, measure = found.view(2, *part.shape[:leads]).unbind()
        return compare, measure
