"""What the server remembers of domains: means over batches that fade, and the BatchNorm statistics made of them.

Domain k holds n_k batches. Those of a round come with the weights b_i(k); n_k falls by 0.1 % per round and is at most
`horizon`. Of statistics of the current batch the server keeps m_k and q_k, the means over n_k batches of d = mean -
source mean and of var + d^2:

    mean = source mean + m_k,   var = q_k - m_k^2                   which contains the variance between batches

and sends sum_k b_i(k) (mean, var)_k + b_i(0) (W theta)_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.groups import count_used
from fedctta.aggregators.kin.belief import TINY
from fedctta.aggregators.kin.parts import remember_parts
from fedctta.core.network import Tensors

FADE = 0.999
SMALLEST = 1e-5  # added to the source's variance: a channel that was always zero has no scale


def grow(weight: Tensor, heed: Tensor, horizon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return n[K] after this round's batches, the part[K, N] of it that each is, and the part[K, 1] that is old.

    `heed`[N, K] are the weights of the batches. Of a domain just founded nothing is old, exactly: what its place held
    before may be anything.
    """
    came = heed.sum(0)
    total = torch.add(came, weight, alpha=FADE).clamp_max(horizon)
    whole = torch.maximum(total, came).clamp_min(TINY)
    return total, (heed / whole).T, (1 - came / whole)[:, None]


def blend_rows(old: Tensor, kept: Tensor, part: Tensor, rows: Tensor) -> Tensor:
    """Return kept_k old_k + sum_i part_ki rows_i for old[K, D] and rows[N, D]."""
    used, new = count_used(part.T), old * kept
    new[:used].addmm_(part[:used], rows)
    return new


def remember(
    source: Tensors, uploads: Uploads, heed: Tensor, replaced: Tensor, memory: Tensors, horizon: float, clip: float = 0
) -> Tensors:
    """Return the statistics of all domains with this round's batches in them; of the `replaced`[K] nothing older.

    With `clip`, those of single clients are kept apart (`parts`), with squares less the source's variance: 0 is the
    source.
    """
    names = find_means(uploads.own)
    centre = torch.cat([source[name] for name in names])
    rows = join(uploads.own, names + name_variances(names))  # of client i: d, then var + d^2
    mean, square = rows.chunk(2, 1)
    square.addcmul_(mean.sub_(centre), mean)
    new = ((uploads.signals["fresh"] == 1) & (rows.sum(1).abs() < torch.inf))[:, None]
    rows.nan_to_num_(0, 0, 0)  # what is not new weighs nothing, and nothing times a number is nothing
    if "batches" not in memory:
        nothing = rows.new_zeros(heed.shape[1], rows.shape[1])
        memory = memory | {"batches": torch.zeros_like(memory["weight"]), "moments": nothing}
    batches, part, kept = grow(torch.where(replaced, 0, memory["batches"]), heed * new, horizon)
    if clip:
        variance = torch.cat([source[name] for name in name_variances(names)])
        nought = torch.cat([torch.zeros_like(variance), variance])
        scale = torch.cat([(variance + SMALLEST).sqrt(), variance + SMALLEST])
        apart = remember_parts(rows - nought, heed * new, replaced, scale, memory, clip, horizon)
        return apart | {"batches": batches, "moments": apart["moments"] + nought}
    return {"batches": batches, "moments": blend_rows(memory["moments"], kept, part, rows)}


def recall(source: Tensors, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors) -> Tensors:
    """Return the statistics to send: those of a client's domains, as far as it is in any, and the rest as mixed."""
    names = find_means(mixed)
    centre = torch.cat([source[name] for name in names])
    names += name_variances(names)
    fresh = (uploads.signals["fresh"] == 1) & receive
    known = memory["belief"][:, :-1] * (memory["batches"] > 0) * fresh[:, None]
    used = count_used(known)
    mean, square = memory["moments"][:used].chunk(2, 1)
    var = torch.addcmul(square, mean, mean, value=-1).clamp_min_(0)
    sent = known[:, :used] @ torch.cat([mean + centre, var], 1)
    sent.addcmul_(1 - known.sum(1, keepdim=True), join(mixed, names))
    parts = torch.split(sent, [mixed[name].shape[1] for name in names], 1)
    return dict(zip(names, parts, strict=True))


def is_statistic(name: str) -> bool:
    """Whether a tensor is a mean or a variance of a BatchNorm layer."""
    return name.endswith(("running_mean", "running_var"))


def find_means(own: Tensors) -> list[str]:
    """Return the names of all means of BatchNorm layers."""
    return sorted(name for name in own if name.endswith("running_mean"))


def name_variances(means: list[str]) -> list[str]:
    """Return the names of the variances that belong to means."""
    return [name.removesuffix("mean") + "var" for name in means]


def join(own: Tensors, names: list[str]) -> Tensor:
    """Lay tensors[N, ...] side by side."""
    return torch.cat([own[name] for name in names], 1)
