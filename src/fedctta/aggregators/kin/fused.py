"""Kin's server on a GPU in seven kernels instead of about 180, eight with many clients: the same results, rounded.

At up to some thousand clients each of the plain operations takes less time than to start it, even in a CUDA graph. The
plain path is the reference, and serves wherever Triton is not there or what is asked is not in the kernels.
"""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.kin import memory_kernels, recognition_kernels
from fedctta.aggregators.kin.belief import TINY
from fedctta.aggregators.kin.statistics_memory import FADE, find_means, join, name_variances
from fedctta.core.appearance import NUMBERS
from fedctta.core.network import Network, Tensors

ROWS, PEERS = 4, 256  # clients per program that compares, and those they are compared with at a time
CHECKED = 4  # clients per program that looks for numbers that cannot be
FOUND = 32  # clients per program that adds up beliefs
BATCH, CHANNELS = 64, 16  # statistics that are added up at a time: clients, channels
SPAN = 512  # clients whose statistics one program adds up
SENT = (16, 64)  # clients and channels per program that answers
TAKERS = 16  # clients per program that restricts W
GIVEN = 4096  # clients up to which every program adds up what all give
LEAST = 16  # the shortest side of a product


class FusedGroups(Groups):
    """W via groups that is restricted by one kernel."""

    __slots__ = ()

    def restricted(self, receive: Tensor, trust: Tensor) -> Groups:
        """W with columns weighted by trust[N] and rows renormalised; those who do not `receive` keep their model."""
        takes, gives, alone = (part.contiguous() for part in self)
        n, domains = takes.shape
        if n > GIVEN:
            return super().restricted(receive, trust)
        took, gave, left = torch.empty_like(takes), torch.empty_like(gives), torch.empty_like(alone)
        heard = trust.view(torch.uint8) if trust.dtype == torch.bool else trust
        memory_kernels.restrict_kernel[(_pieces(n, TAKERS),)](
            takes, gives, alone, receive.view(torch.uint8), heard, took, gave, left,
            n, domains, N=TAKERS, K=_cover(domains), M=128,
        )  # fmt: skip
        return Groups(took, gave, left)


def update_all(
    network: Network, uploads: Uploads, memory: Tensors, *, hazard: float, tolerance: float, strange: float,
    horizon: float,
) -> tuple[Groups, Tensors]:  # fmt: skip
    """Update beliefs, start a new domain if needed, update all that is remembered, and return who is kin."""
    look, spread, images = (uploads.signals[name].contiguous() for name in ("look", "spread", "images"))
    trust = uploads.active.view(torch.uint8) if uploads.trust is None else uploads.trust
    n, domains = len(look), len(memory["weight"])
    wide, block = _cover(domains), _cover(n)
    fixed = {"D": NUMBERS, "TINY": TINY}
    rows, centre, fresh, batches, moments, channels = _lay_out_statistics(network, uploads, memory)
    fed = {name: torch.empty_like(memory[name]) for name in ("weight", "look", "spread")}
    if channels:
        fed |= {"batches": torch.empty_like(batches), "moments": torch.empty_like(moments)}

    heed, new, unknown, score, alone = look.new_empty(5, n)
    usual, typical = look.new_empty(NUMBERS), look.new_empty(1)
    recognition_kernels.hear_kernel[(NUMBERS + (_pieces(n, CHECKED) if channels else 0),)](
        look, spread, images, trust, rows, centre, fresh, heed, new, usual, typical, n, channels, tolerance,
        **fixed, BLOCK=block, R=CHECKED, C=512, num_warps=_warps(block),
    )  # fmt: skip
    belief = torch.empty_like(memory["belief"])
    recognition_kernels.believe_kernel[(_pieces(n, ROWS),)](
        look, images, heed, usual, memory["belief"], memory["weight"], memory["look"], memory["spread"],
        belief, unknown, n, domains, tolerance, hazard, 0.5 * NUMBERS * log(strange), **fixed, N=ROWS, K=wide,
    )  # fmt: skip
    recognition_kernels.compare_kernel[(_pieces(n, ROWS),)](
        look, heed, unknown, usual, typical, score, n, strange, **fixed, BLOCK=block, N=ROWS, M=PEERS
    )
    after, takes, gives = torch.empty_like(belief), look.new_empty(n, domains), look.new_empty(domains, n)
    replaced, blocks = torch.empty(domains, dtype=torch.int8, device=look.device), _pieces(n, FOUND)
    wise = _cover(NUMBERS)
    sums, looks = look.new_empty(blocks, 3, wide), look.new_empty(blocks, 2, wide, wise)
    recognition_kernels.found_kernel[(blocks,)](
        look, spread, heed, new if channels else heed, unknown, usual, typical, score, belief, memory["belief"],
        memory["weight"], after, takes, alone, replaced, sums, looks, n, domains, strange,
        **fixed, BLOCK=block, N=FOUND, K=wide, L=wise, num_warps=_warps(block),
    )  # fmt: skip
    columns, splits = _pieces(channels, CHANNELS), _pieces(n, SPAN)
    parts = look.new_empty(splits, *moments.shape) if splits > 1 else moments
    memory_kernels.remember_kernel[(columns * splits + 1 + _pieces(n, 64),)](
        rows, centre, heed, new, takes, replaced, sums, looks,
        memory["weight"], memory["look"], memory["spread"], batches, moments,
        gives, fed["weight"], fed["look"], fed["spread"], fed.get("batches", look), fed.get("moments", look), parts,
        n, domains, channels, blocks, columns, splits, SPAN, horizon, FADE,
        **fixed, N=BATCH, K=wide, C=CHANNELS, G=64, L=wise, B=32, WHOLE=splits == 1,
    )  # fmt: skip
    if channels and splits > 1:
        memory_kernels.gather_kernel[(_pieces(2 * channels, 64),)](
            replaced, sums, parts, batches, moments, fed["batches"], fed["moments"],
            domains, channels, blocks, splits, horizon, FADE, TINY=TINY, K=wide, C=64, B=32,
        )  # fmt: skip
    return FusedGroups(takes, gives, alone), memory | fed | {"belief": after}


class _Statistics(NamedTuple):
    """What clients upload of statistics and what is remembered of them; without any, tensors that nobody reads."""

    rows: Tensor  # of client i: means, then variances
    centre: Tensor  # the source's means
    fresh: Tensor
    batches: Tensor
    moments: Tensor
    channels: int


def _lay_out_statistics(network: Network, uploads: Uploads, memory: Tensors) -> _Statistics:
    if "fresh" not in uploads.signals:
        nothing = uploads.signals["look"]
        return _Statistics(nothing, nothing, nothing, nothing, nothing, 0)
    names = find_means(uploads.own)
    rows = join(uploads.own, names + name_variances(names))
    centre = torch.cat([network.state[name] for name in names])
    domains = len(memory["weight"])
    batches, moments = (
        memory[name] if name in memory else rows.new_zeros(*shape)
        for name, shape in (("batches", (domains,)), ("moments", (domains, rows.shape[1])))
    )
    return _Statistics(rows, centre, uploads.signals["fresh"].contiguous(), batches, moments, len(centre))


def recall(source: Tensors, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors) -> Tensors:
    """Return the statistics to send: those of a client's domains, as far as it is in any, and the rest as mixed."""
    means = find_means(mixed)
    names = means + name_variances(means)
    together, places = _find_columns([mixed[name] for name in names])
    centre = torch.cat([source[name] for name in means])
    n, domains, channels = len(together), len(memory["weight"]), len(centre)
    sent, (rows, columns) = together.new_empty(n, 2 * channels), SENT
    memory_kernels.recall_kernel[(_pieces(n, rows), _pieces(channels, columns))](
        memory["belief"], memory["batches"], memory["moments"], centre, uploads.signals["fresh"].contiguous(),
        receive.view(torch.uint8), together, places, sent, n, domains, channels, together.stride(0),
        N=rows, K=_cover(domains), C=columns,
    )  # fmt: skip
    parts = torch.split(sent, [mixed[name].shape[1] for name in names], 1)
    return dict(zip(names, parts, strict=True))


def _find_columns(tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a tensor in whose rows all tensors[N, ...] lie, and the columns in which their numbers are.

    Mixed vectors are parts of one tensor, and then need no copy.
    """
    first = min(tensors, key=Tensor.storage_offset)
    alike = {(tensor.untyped_storage().data_ptr(), *tensor.stride()) for tensor in tensors}
    if len(alike) > 1 or first.stride(1) != 1:
        first = torch.cat(tensors, 1)
        return first, _list_columns(first.device, ((0, first.shape[1]),))
    spans = tuple((tensor.storage_offset() - first.storage_offset(), tensor.shape[1]) for tensor in tensors)
    return first, _list_columns(first.device, spans)


@lru_cache(maxsize=64)
def _list_columns(device: torch.device, spans: tuple[tuple[int, int], ...]) -> Tensor:
    """Return the numbers of all columns in spans (begin, width); kept, since a graph cannot read them from the host."""
    columns = [column for begin, width in spans for column in range(begin, begin + width)]
    return torch.tensor(columns, dtype=torch.int32, device=device)


def _pieces(whole: int, piece: int) -> int:
    return -(-whole // piece)


def _cover(length: int) -> int:
    """Return the least power of two that is no shorter, and no shorter than a product's shortest side."""
    return max(LEAST, 1 << (length - 1).bit_length())


def _warps(block: int) -> int:
    return max(4, min(16, block // 512))
