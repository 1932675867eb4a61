"""The server's book: what every device has seen of every domain, kept apart, and added up on request.

A part is what one device has seen of one domain: a row of sums (`rows`) under the name that the domain has on the
device, with the device's time as version. Receiving a part replaces an older one of the same device and name, and
changes nothing if there is one as new: parts may be lost, repeated, late or out of order, and libraries that have
received the same parts hold the same. All parts of a device can be taken out again (`withdraw`).

Parts that look like one domain form a domain (`arrange`), whatever names devices have given it. Of a domain the
`parts` newest parts are kept; of domains, the `domains` that were seen last.

What a device is handed is, for every domain, the sum over the parts p of all other devices

    r_k = sum_p f_p n_p m_p,    m_p = the part's means,  n_p = min(images, most),  f_p = 2^(-age / half life)

in which every group of means (looks, moments, ...) is first pulled to the domain's median, number by number, if it is
farther from it than `clip` times the median distance. So a few lies among many parts change little. A domain of which
one or two devices tell has no majority. There moments are at most `clip` times as long as the median of all domains',
and count no more than `few` images. All parts of a device in a domain are one voice, and two devices that claim to live
in the future do not make all others' parts old (`find_time`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.books.recognition import TINY, Looks, Recogniser
from fedctta.books.rows import Layout
from fedctta.core.appearance import ALONE, NUMBERS
from fedctta.core.network import Tensors

MAJORITY = 3  # parts from which on a median tells who is far off
GROUPS = {
    "images": ("look", "square"),
    "scored": ("doubt",),
    "measured": ("moments",),
    "trained": ("learnt",),
}
"""Sums, by the number of images that they are over."""


class Download(NamedTuple):
    """What a device receives: rows[K, S] of all others, names[K] (0: no domain), places[K] of its own, the time."""

    book: Tensor
    heading: Tensor
    place: Tensor
    time: Tensor


@dataclass(frozen=True)
class Rules:
    """How parts are kept and added up."""

    domains: int = 32
    parts: int = 64
    clip: float = 2.0
    most: float = 2_000.0
    few: float = 30.0
    half_life: float = 20_000.0
    recogniser: Recogniser = field(default_factory=Recogniser)


class Shelf(NamedTuple):
    """All parts, in order of domain, name and device: P rows[P, S], and of each its device, name, version and domain.

    `time`[] is the latest version of all. Tensors only, so that a server's checkpoint holds it.
    """

    rows: Tensor
    device: Tensor
    name: Tensor
    version: Tensor
    domain: Tensor
    time: Tensor

    @staticmethod
    def empty(width: int, device: torch.device | str = "cpu") -> Shelf:
        """Return a shelf without parts."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Shelf(torch.zeros(0, width, device=device), none, none, none, none, none.new_zeros(()))

    def take(self, which: Tensor) -> Shelf:
        """Return the parts chosen by a mask or by indices."""
        rows, device, name, version, domain = (tensor[which] for tensor in self[:-1])
        return Shelf(rows, device, name, version, domain, self.time)


def receive(shelf: Shelf, device: Tensor, name: Tensor, version: Tensor, rows: Tensor, present: Tensor) -> Shelf:
    """Return the shelf with new parts[Q]; devices in `present` have no other parts than these and older ones of these.

    A part that is not newer than the one of its device and name changes nothing.
    """
    known = (shelf.device[:, None] == device) & (shelf.name[:, None] == name)  # [P, Q]
    newer = ~(known & (shelf.version[:, None] >= version)).any(0)
    gone = torch.isin(shelf.device, present) & ~known.any(1)  # a device that has united two domains has one name less
    stays = ~(known[:, newer].any(1) | gone)
    joined = Shelf(
        torch.cat([shelf.rows[stays], rows[newer]]),
        torch.cat([shelf.device[stays], device[newer]]),
        torch.cat([shelf.name[stays], name[newer]]),
        torch.cat([shelf.version[stays], version[newer]]),
        torch.cat([shelf.domain[stays], _find_domains(shelf, name[newer])]),
        torch.maximum(shelf.time, version.max()) if len(version) else shelf.time,
    )
    order = _order(joined.device, joined.name)
    return joined.take(order)


def _find_domains(shelf: Shelf, names: Tensor) -> Tensor:
    """Return the domains of names[Q] that are known already; -1 for others, which are to be arranged."""
    if not len(shelf.name):
        return torch.full_like(names, -1)
    same = shelf.name[:, None] == names
    return torch.where(same.any(0), shelf.domain[same.int().argmax(0)], -1)


def withdraw(shelf: Shelf, device: int) -> Shelf:
    """Return the shelf without anything that a device has sent."""
    return shelf.take(shelf.device != device)


def merge(one: Shelf, other: Shelf) -> Shelf:
    """Return the parts of both, the newer where both have one: a root's view of two regional servers."""
    none = one.device.new_zeros(0)
    both = receive(one, other.device, other.name, other.version, other.rows, none)
    return both._replace(time=torch.maximum(one.time, other.time))


def arrange(shelf: Shelf, layout: Layout, rules: Rules) -> Shelf:
    """Return the shelf with every part in a domain, by the looks of all parts together; what is too much is left out.

    Names are taken one by one, in their order: one joins the domain that it looks most like, if it is more likely the
    same than another one, and starts a new domain if not. So the result depends on the parts alone, and not on the
    order in which they came.
    """
    if not len(shelf.name):
        return shelf
    names, which = torch.unique(shelf.name, return_inverse=True)
    short = shelf.rows[:, : layout.short]
    totals = short.new_zeros(len(names), layout.short).index_add(0, which, short)
    usual = usual_spread(layout, totals)
    looks = Looks.read(layout, totals)
    domains = torch.zeros_like(totals)
    place = torch.zeros_like(names)
    count = 0
    for k in range(len(names)):
        if count:
            one = Looks(looks.images[k : k + 1], looks.mean[k : k + 1], looks.var[k : k + 1])
            odds = rules.recogniser.same(one, Looks.read(layout, domains[:count]), usual)[0]
            best = int(odds.argmax())
            place[k] = best if float(odds[best]) > 0 else count
        count = max(count, int(place[k]) + 1)
        domains[place[k]] += totals[k]
    return _limit(shelf._replace(domain=place[which]), rules)


def _limit(shelf: Shelf, rules: Rules) -> Shelf:
    """Keep the newest parts of every domain and the newest domains, and number these in the order of their names."""
    seen = torch.zeros(int(shelf.domain.max()) + 1, dtype=torch.int64, device=shelf.name.device)
    seen = seen.scatter_reduce(0, shelf.domain, shelf.version, "amax")
    kept = torch.zeros_like(seen, dtype=torch.bool)
    kept[seen.argsort(descending=True, stable=True)[: rules.domains]] = True
    by_age = _order(shelf.domain, -shelf.version, shelf.device)
    rank = torch.arange(len(by_age), device=by_age.device)
    domain = shelf.domain[by_age]
    first = torch.searchsorted(domain, domain)
    newest = torch.zeros_like(by_age, dtype=torch.bool)
    newest[by_age] = rank - first < rules.parts
    shelf = shelf.take(kept[shelf.domain] & newest)
    return shelf._replace(domain=torch.unique(shelf.domain, return_inverse=True)[1])


def find_time(shelf: Shelf) -> Tensor:
    """Return the time of the third device from the latest, or the latest if there are fewer: two cannot move it."""
    if not len(shelf.device):
        return shelf.time
    who, which = torch.unique(shelf.device, return_inverse=True)
    latest = shelf.version.new_zeros(len(who)).scatter_reduce(0, which, shelf.version, "amax")
    return latest.sort(descending=True).values[MAJORITY - 1 if len(who) >= MAJORITY else 0]


def usual_spread(layout: Layout, totals: Tensor) -> Tensor:
    """Return the variance[10] of looks within a domain: the median over all that rest on some images."""
    looks = Looks.read(layout, totals)
    enough = looks.images > NUMBERS
    if not bool(enough.any()):
        return totals.new_full((NUMBERS,), ALONE)
    middle: Tensor = torch.quantile(looks.var[enough], 0.5, 0)
    return middle


def add_up(shelf: Shelf, layout: Layout, rules: Rules) -> Tensor:
    """Return what every part counts, as rows[P, S]: clipped to its domain, capped, and faded to the shelf's time.

    Parts of one domain from one device are one voice: they count together what one part would, with their mean.
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
        for group in groups:
            columns = layout.parts[group]
            means = voices[:, columns] / total.clamp_min(TINY)[:, None]
            if group == "moments":
                means[total > 0] = clip_to_source(means[total > 0], rules.clip)
            for k in pairs[0].unique():
                here = ((pairs[0] == k) & (total > 0)).nonzero().squeeze(1)
                means[here] = clip_to_median(means[here], rules.clip)
            result[:, columns] = weight[:, None] * means[voice]
    return result


def confirm(domain: Tensor, count: Tensor, rules: Rules) -> Tensor:
    """Return what voices[V] with so many images count: of a domain with fewer than three, each at most `few` images.

    Fewer than three voices have no majority. Then a device soon relies on its own images more than on theirs.
    """
    heard = count.new_zeros(int(domain.max()) + 1 if len(domain) else 0).index_add(0, domain, (count > 0).to(count))
    return torch.where(heard[domain] < MAJORITY, (rules.few / count.clamp_min(TINY)).clamp_max(1), 1)


def clip_to_source(moments: Tensor, clip: float) -> Tensor:
    """Shorten rows of moments[V, D] to `clip` median lengths, of all domains: zeros are the source's."""
    if len(moments) < MAJORITY:
        return moments
    length = moments.norm(dim=1, keepdim=True)
    shortened: Tensor = moments * (clip * length.median() / length.clamp_min(TINY)).clamp_max(1)
    return shortened


def clip_to_median(means: Tensor, clip: float) -> Tensor:
    """Pull rows of means[P, D] to `clip` median distances from the median, if there are enough of them."""
    if len(means) < MAJORITY:
        return means
    middle: Tensor = means.median(0).values
    apart = means - middle
    distance = apart.norm(dim=1, keepdim=True)
    most = clip * distance.median()
    clipped: Tensor = middle + apart * (most / distance.clamp_min(TINY)).clamp_max(1)
    return clipped


def sum_domains(shelf: Shelf, counted: Tensor, domains: int) -> Tensor:
    """Return the sums[K, S] of all domains."""
    return counted.new_zeros(domains, counted.shape[1]).index_add(0, shelf.domain, counted)


def hand_out(shelf: Shelf, counted: Tensor, sums: Tensor, headings: Tensor, device: int, names: Tensor) -> Download:
    """Return what a device receives, whose own domains have these names[K], given what all parts and domains count."""
    mine = (shelf.device == device).nonzero().squeeze(1)
    book = sums.index_add(0, shelf.domain[mine], counted[mine], alpha=-1)
    same = names[:, None] == shelf.name[mine]  # [K, own parts]
    place = torch.where(same.any(1), shelf.domain[mine][same.int().argmax(1)] if len(mine) else -1, -1)
    return Download(book, headings, place, shelf.time)


def find_headings(shelf: Shelf, domains: int) -> Tensor:
    """Return the names[K] of all domains: each has the least of those that devices have given it; 0: no domain."""
    most = torch.iinfo(torch.int64).max
    least = torch.full((domains,), most, device=shelf.name.device).scatter_reduce(0, shelf.domain, shelf.name, "amin")
    return torch.where(least == most, 0, least)


def to_tensors(shelf: Shelf) -> Tensors:
    """Return the shelf as a dictionary."""
    return dict(zip(Shelf._fields, shelf, strict=True))


def from_tensors(tensors: Tensors) -> Shelf:
    """Undo `to_tensors`."""
    return Shelf(*(tensors[name] for name in Shelf._fields))


def _order(*keys: Tensor) -> Tensor:
    """Return the indices that sort by the first key, then the second, and so on."""
    order = torch.arange(len(keys[0]), device=keys[0].device)
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order
