"""What parts count when they are added up, so that a few lies among many change little.

What a device is handed of a domain is the sum over the parts p of all other devices

    r_k = sum_p f_p n_p m_p,    m_p = the part's means,  n_p = min(images, most),  f_p = 2^(-age / half life)

in which every group of means (looks, moments, ...) is first pulled to the domain's median, number by number, if it is
farther from it than `clip` times the median distance. A domain of which one or two devices tell has no majority. There
moments are at most `clip` times as long as the median of all domains', and count no more than `few` images. All parts
of a device in a domain are one voice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedctta.books.library import Rules, Shelf
from fedctta.books.recognition import TINY
from fedctta.books.room import MAJORITY
from fedctta.books.rows import Layout

GROUPS = {
    "images": ("look", "square"),
    "scored": ("doubt", "unusual"),
    "measured": ("moments",),
    "trained": ("learnt",),
}
"""Sums, by the number of images that they are over."""


def add_up(shelf: Shelf, layout: Layout, rules: Rules) -> Tensor:
    """Return what every part counts, as rows[P, S]: clipped to its domain, capped, and faded to the shelf's time.

    Parts of one domain from one device are one voice: they count together what one part would, with their mean.
    """
    pairs, voice = torch.unique(torch.stack([shelf.domain, shelf.device]), dim=1, return_inverse=True)
    places = Places.find(pairs[0])
    voices = shelf.rows.new_zeros(pairs.shape[1], layout.width).index_add(0, voice, shelf.rows)
    weight, total = weigh(shelf.rows, fade(shelf.time - shelf.version, rules), layout, rules, pairs[0], voice)
    result = torch.zeros_like(shelf.rows)
    for n, (count, groups) in enumerate(GROUPS.items()):
        layout.of(result, count).copy_(weight[:, n])
        heard = total[:, n] > 0
        for group in groups:
            columns = layout.parts[group]
            if columns.start == columns.stop:  # nothing is learnt, or measured
                continue
            means = voices[:, columns] / total[:, n].clamp_min(TINY)[:, None]
            if group == "moments":
                means[heard] = clip_to_source(means[heard], rules.clip)
            means = clip_in_domains(means, heard, places, rules.clip)
            result[:, columns] = weight[:, n, None] * means[voice]
    return result


class Places(NamedTuple):
    """Where voices[V] stand in a table[K, R, ...] of domains and their voices: row domain[v], column rank[v]."""

    domain: Tensor
    rank: Tensor
    shape: tuple[int, int]

    @staticmethod
    def find(domain: Tensor) -> Places:
        """Arrange voices whose domains[V] are in order."""
        if not len(domain):
            return Places(domain, domain, (0, 0))
        counts = torch.bincount(domain)
        rank = torch.arange(len(domain), device=domain.device) - (counts.cumsum(0) - counts)[domain]
        return Places(domain, rank, (len(counts), int(counts.max())))


def clip_in_domains(means: Tensor, heard: Tensor, places: Places, clip: float) -> Tensor:
    """Clip the means[V, D] of those that are heard[V] to the median of their domain."""
    table = means.new_full((*places.shape, means.shape[1]), torch.nan)
    table[places.domain, places.rank] = torch.where(heard[:, None], means, torch.nan)
    count = heard.new_zeros(places.shape[0], dtype=torch.int64).index_add(0, places.domain, heard.long())
    return torch.where(heard[:, None], clip_tables(table, count, clip)[places.domain, places.rank], means)


def clip_tables(table: Tensor, count: Tensor, clip: float) -> Tensor:
    """Pull the rows of table[K, R, D], of which count[K] are not nan, to `clip` median distances from their median.

    Domains with too few rows stay. All are pulled at once: on a GPU a loop over domains would wait for each of them.
    """
    middle = find_medians(table, count)
    apart = table - middle
    distance = apart.norm(dim=2, keepdim=True)
    clipped = middle + apart * shorten(distance, clip * find_medians(distance, count))
    return torch.where((count >= MAJORITY)[:, None, None], clipped, table)


def find_medians(table: Tensor, count: Tensor) -> Tensor:
    """Return the medians[K, 1, D] of the count[K] numbers in table[K, R, D] that are not nan, the lower of two.

    NumPy sorts many short columns faster than PyTorch.
    """
    if table.device.type != "cpu":
        return table.nanmedian(1, keepdim=True).values
    columns = np.sort(np.ascontiguousarray(table.detach().numpy().transpose(0, 2, 1)), axis=2)  # nan comes last
    middle = ((count - 1) // 2).clamp_min(0).numpy()[:, None, None]
    return torch.from_numpy(np.take_along_axis(columns, middle, 2).transpose(0, 2, 1).copy())


def fade(age: Tensor, rules: Rules) -> Tensor:
    """Return what is left of parts of this age; those of the future are new."""
    return torch.exp2(-age.clamp_min(0) / rules.half_life)


def weigh(
    rows: Tensor, faded: Tensor, layout: Layout, rules: Rules, domain: Tensor, voice: Tensor
) -> tuple[Tensor, Tensor]:
    """Return for every count how many images parts[P] count, and voices[V] rest on.

    `faded` is what is left of parts, domain[V] the domains of voices, and voice[P] the voices of parts.
    """
    told = rows[:, [layout.parts[count].start for count in GROUPS]]
    images = told[:, 0]
    over = told.clamp(min=0).minimum(images[:, None])  # nobody measures more than it sees
    total = over.new_zeros(len(domain), len(GROUPS)).index_add(0, voice, over)
    together = images.new_zeros(len(domain)).index_add(0, voice, images)[voice]
    capped = (rules.most / together.clamp_min(TINY)).clamp_max(1)
    sure = confirm(domain, total, rules)
    sure[:, 0] = 1  # looks only tell which domain it is
    return faded[:, None] * capped[:, None].minimum(sure[voice]) * over, total


def find_limit(lengths: Tensor, clip: float) -> Tensor:
    """Return how long moments may be: `clip` median lengths, of all domains; infinite without a majority."""
    return clip * lengths.median() if len(lengths) >= MAJORITY else lengths.new_full((), torch.inf)


def confirm(domain: Tensor, count: Tensor, rules: Rules) -> Tensor:
    """Return what voices[V, ...] with so many images count: of a domain with fewer than three, each at most `few`.

    Fewer than three voices have no majority. Then a device soon relies on its own images more than on theirs.
    """
    domains = int(domain.max()) + 1 if len(domain) else 0
    heard = count.new_zeros(domains, *count.shape[1:]).index_add(0, domain, (count > 0).to(count))
    return torch.where(heard[domain] < MAJORITY, (rules.few / count.clamp_min(TINY)).clamp_max(1), 1)


def clip_to_source(moments: Tensor, clip: float) -> Tensor:
    """Shorten rows of moments[V, D] to `clip` median lengths, of all domains: zeros are the source's."""
    length = moments.norm(dim=1, keepdim=True)
    return moments * shorten(length, find_limit(length, clip))


def shorten(length: Tensor, most: Tensor) -> Tensor:
    """Return the factors that make lengths at most `most`."""
    factor: Tensor = (most / length.clamp_min(TINY)).clamp_max(1)
    return factor
