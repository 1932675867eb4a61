"""What parts count when they are added up, so that a few lies among many change little.

What a device is handed of a domain is the sum over the parts p of all other devices

    r_k = sum_p f_p n_p m_p,    m_p = the part's means,  n_p = min(images, most),  f_p = 2^(-age / half life)

in which every group of means (looks, moments, ...) is first pulled to the domain's median, number by number, if it is
farther from it than `clip` times the median distance. A domain of which one or two devices tell has no majority. There
moments are at most `clip` times as long as the median of all domains', and count no more than `few` images. All parts
of a device in a domain are one voice.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedctta.books.library import Rules, Shelf
from fedctta.books.recognition import TINY
from fedctta.books.room import MAJORITY
from fedctta.books.rows import Layout

GROUPS = {
    "images": ("look", "square"),
    "scored": ("entropy", "classes"),
    "measured": ("moments",),
    "trained": ("learnt",),
}
"""Sums, by the number of images that they are over."""


def add_up(shelf: Shelf, layout: Layout, rules: Rules, far: Tensor | None = None) -> Tensor:
    """Return what every part counts, as rows[P, S]: clipped to its domain, capped, and faded to the shelf's time.

    Parts of one domain from one device are one voice: they count together what one part would, with their mean.
    Moments longer than `far` are shortened; without it, the limit is that of the parts given (`find_limit`).
    """
    pairs, voice = torch.unique(torch.stack([shelf.domain, shelf.device]), dim=1, return_inverse=True)
    voices = shelf.rows.new_zeros(pairs.shape[1], layout.width).index_add(0, voice, shelf.rows)
    fade = torch.exp2(-(shelf.time - shelf.version).clamp_min(0) / rules.half_life)
    images = layout.of(shelf.rows, "images")
    together = layout.of(voices, "images")[voice]
    capped = (rules.most / together.clamp_min(TINY)).clamp_max(1)
    result = torch.zeros_like(shelf.rows)
    for count, groups in GROUPS.items():
        over = layout.of(shelf.rows, count).clamp(min=0).minimum(images)  # nobody measures more than it sees
        total = together.new_zeros(len(voices)).index_add(0, voice, over)
        counts = capped
        if count != "images":  # looks only tell which domain it is
            counts = capped.minimum(confirm(pairs[0], total, rules)[voice])
        weight = fade * counts * over
        layout.of(result, count).copy_(weight)
        heard = total > 0
        for group in groups:
            columns = layout.parts[group]
            if columns.start == columns.stop:
                continue
            means = voices[:, columns] / total.clamp_min(TINY)[:, None]
            if group == "moments":
                means[heard] = clip_to_source(means[heard], rules.clip, far)
            for k in pairs[0].unique():
                here = ((pairs[0] == k) & heard).nonzero().squeeze(1)
                means[here] = clip_to_median(means[here], rules.clip)
            result[:, columns] = weight[:, None] * means[voice]
    return result


def measure_lengths(shelf: Shelf, layout: Layout) -> Tensor:
    """Return the lengths[V] of the mean moments of all voices that have measured any."""
    pairs, voice = torch.unique(torch.stack([shelf.domain, shelf.device]), dim=1, return_inverse=True)
    moments = layout.of(shelf.rows, "moments")
    over = layout.of(shelf.rows, "measured").clamp(min=0).minimum(layout.of(shelf.rows, "images"))
    total = over.new_zeros(pairs.shape[1]).index_add(0, voice, over)
    means = (
        moments.new_zeros(len(total), moments.shape[1]).index_add(0, voice, moments) / total.clamp_min(TINY)[:, None]
    )
    lengths: Tensor = means[total > 0].norm(dim=1)
    return lengths


def find_limit(lengths: Tensor, clip: float) -> Tensor:
    """Return how long moments may be: `clip` median lengths, of all domains; infinite without a majority."""
    return clip * lengths.median() if len(lengths) >= MAJORITY else lengths.new_full((), torch.inf)


def confirm(domain: Tensor, count: Tensor, rules: Rules) -> Tensor:
    """Return what voices[V] with so many images count: of a domain with fewer than three, each at most `few` images.

    Fewer than three voices have no majority. Then a device soon relies on its own images more than on theirs.
    """
    heard = count.new_zeros(int(domain.max()) + 1 if len(domain) else 0).index_add(0, domain, (count > 0).to(count))
    return torch.where(heard[domain] < MAJORITY, (rules.few / count.clamp_min(TINY)).clamp_max(1), 1)


def clip_to_source(moments: Tensor, clip: float, far: Tensor | None = None) -> Tensor:
    """Shorten rows of moments[V, D] to `far`, else to `clip` median lengths, of all domains: zeros are the source's."""
    length = moments.norm(dim=1, keepdim=True)
    far = find_limit(length, clip) if far is None else far
    shortened: Tensor = moments * (far / length.clamp_min(TINY)).clamp_max(1)
    return shortened


def clip_to_median(means: Tensor, clip: float) -> Tensor:
    """Pull rows of means[P, D] to `clip` median distances from the median, if there are enough of them."""
    if len(means) < MAJORITY:
        return means
    middle = find_median(means)
    apart = means - middle
    distance = apart.norm(dim=1, keepdim=True)
    most = clip * distance.median()
    clipped: Tensor = middle + apart * (most / distance.clamp_min(TINY)).clamp_max(1)
    return clipped


def find_median(rows: Tensor) -> Tensor:
    """Return the median[D] of rows[P, D], the lower of two; NumPy sorts columns eight times as fast as PyTorch does."""
    if rows.device.type != "cpu":
        return rows.median(0).values
    return torch.from_numpy(np.sort(rows.detach().numpy(), axis=0)[(len(rows) - 1) // 2])
