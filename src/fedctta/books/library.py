"""The server's book: what every device has seen of every domain, kept apart.

A part is what one device has seen of one domain: a row of sums (`rows`) under the name that the domain has on the
device, with the device's time as version. Receiving a part replaces an older one of the same device and name, and
changes nothing if there is one as new: parts may be lost, repeated, late or out of order, and libraries that have
received the same parts hold the same. All parts of a device can be taken out again (`withdraw`).

With its parts a device sends the list of all its domains, and its time. A part that is not in the newest list of its
device is gone: the device has renamed its domain, or united two. An older list, and all that came with it, changes
nothing. Of every device the time of the newest list is kept, whether or not its parts still are: so of two servers, the
one with the newer list has all that is left of a device, and `merge` counts nothing twice when devices change servers.

Parts that look like one domain form a domain (`arrange`), whatever names devices have given it. A domain keeps `parts`
parts, a book `domains` domains (`room`). What parts count is told in `counting`. Two devices that claim to live in the
future do not make all others' parts old (`find_time`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.books.recognition import Looks, Recogniser
from fedctta.books.room import MAJORITY, choose_domains, choose_parts, sort_by
from fedctta.books.rows import Layout
from fedctta.core.appearance import ALONE, NUMBERS
from fedctta.core.network import Tensors


class Download(NamedTuple):
    """What N devices receive: rows[N, K, S] of all others, names[N, K] (0: no domain), places[N, K], the time[N].

    The places are those of their own domains.
    """

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
    alone: int = 4
    recogniser: Recogniser = field(default_factory=Recogniser)


class Shelf(NamedTuple):
    """All parts, in order of device and name: P rows[P, S], and of each its device, name, version and domain.

    `time`[] is the time of the server. `known`[D] are all devices that have sent a list, in order, and `heard`[D] the
    times of their newest. Tensors only, so that a server's checkpoint holds it.
    """

    rows: Tensor
    device: Tensor
    name: Tensor
    version: Tensor
    domain: Tensor
    time: Tensor
    known: Tensor
    heard: Tensor

    @staticmethod
    def empty(width: int, device: torch.device | str = "cpu") -> Shelf:
        """Return a shelf without parts."""
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return Shelf(torch.zeros(0, width, device=device), none, none, none, none, none.new_zeros(()), none, none)

    def take(self, which: Tensor) -> Shelf:
        """Return the parts chosen by a mask or by indices."""
        rows, device, name, version, domain = (tensor[which] for tensor in self[:5])
        return Shelf(rows, device, name, version, domain, self.time, self.known, self.heard)


class Lists(NamedTuple):
    """Whose lists come with parts, and of which time: device[L], time[L]."""

    device: Tensor
    time: Tensor


def receive(shelf: Shelf, device: Tensor, name: Tensor, version: Tensor, rows: Tensor, lists: Lists) -> Shelf:
    """Return the shelf with new parts[Q]; devices with a list have no other parts than these and older ones of these.

    A part that is not newer than the one of its device and name changes nothing, nor does an older list.
    """
    late = lists.time < look_up(shelf.known, shelf.heard, lists.device)
    current = ~torch.isin(device, lists.device[late])
    device, name, version, rows = device[current], name[current], version[current], rows[current]
    known = (shelf.device[:, None] == device) & (shelf.name[:, None] == name)  # [P, Q]
    newer = ~(known & (shelf.version[:, None] >= version)).any(0)
    gone = torch.isin(shelf.device, lists.device[~late]) & ~known.any(1)
    stays = ~(known[:, newer].any(1) | gone)
    joined = Shelf(
        torch.cat([shelf.rows[stays], rows[newer]]),
        torch.cat([shelf.device[stays], device[newer]]),
        torch.cat([shelf.name[stays], name[newer]]),
        torch.cat([shelf.version[stays], version[newer]]),
        torch.cat([shelf.domain[stays], _find_domains(shelf, name[newer])]),
        torch.maximum(shelf.time, version.max()) if len(version) else shelf.time,
        *_latest(torch.cat([shelf.known, lists.device]), torch.cat([shelf.heard, lists.time])),
    )
    return joined.take(sort_by(joined.device, joined.name))


def look_up(known: Tensor, heard: Tensor, device: Tensor) -> Tensor:
    """Return when devices[Q] were heard; -1: never."""
    if not len(known):
        return torch.full_like(device, -1)
    at = torch.searchsorted(known, device).clamp_max(len(known) - 1)
    return torch.where(known[at] == device, heard[at], -1)


def _latest(device: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Return every device once, in order, and its latest time."""
    known, which = torch.unique(device, return_inverse=True)
    return known, time.new_full((len(known),), -1).scatter_reduce(0, which, time, "amax")


def _find_domains(shelf: Shelf, names: Tensor) -> Tensor:
    """Return the domains of names[Q] that are known already; -1 for others, which are to be arranged."""
    if not len(shelf.name):
        return torch.full_like(names, -1)
    same = shelf.name[:, None] == names
    return torch.where(same.any(0), shelf.domain[same.int().argmax(0)], -1)


def withdraw(shelf: Shelf, device: int) -> Shelf:
    """Return the shelf without anything that a device has sent."""
    others = shelf.known != device
    return shelf.take(shelf.device != device)._replace(known=shelf.known[others], heard=shelf.heard[others])


def merge(one: Shelf, other: Shelf) -> Shelf:
    """Return the parts of both, the newer where both have one: a root's view of two regional servers.

    Of a device that one of them has heard later, that one has all parts.
    """
    here, there = _drop_outdated(one, other), _drop_outdated(other, one)
    both = receive(here, there.device, there.name, there.version, there.rows, Lists(other.known[:0], other.heard[:0]))
    known, heard = _latest(torch.cat([one.known, other.known]), torch.cat([one.heard, other.heard]))
    return both._replace(time=torch.maximum(one.time, other.time), known=known, heard=heard)


def _drop_outdated(shelf: Shelf, other: Shelf) -> Shelf:
    """Leave out the parts of devices that the other has heard later."""
    here, there = (look_up(each.known, each.heard, shelf.device) for each in (shelf, other))
    return shelf.take(here >= there)


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
    return limit(shelf._replace(domain=place[which]), rules)


def limit(shelf: Shelf, rules: Rules) -> Shelf:
    """Leave out the parts and domains that have no room, and number domains in the order of their names."""
    kept = choose_domains(shelf.domain, shelf.device, shelf.version, rules.domains, rules.alone)
    fits = choose_parts(shelf.domain, shelf.device, shelf.version, rules.parts)
    shelf = shelf.take(kept[shelf.domain] & fits)
    return shelf._replace(domain=torch.unique(shelf.domain, return_inverse=True)[1])


def find_time(shelf: Shelf) -> Tensor:
    """Return the time of the third device from the latest, or the latest if there are fewer: two cannot move it."""
    if not len(shelf.device):
        return shelf.time
    who, which = torch.unique(shelf.device, return_inverse=True)
    latest = shelf.version.new_zeros(len(who)).scatter_reduce(0, which, shelf.version, "amax")
    return latest.sort(descending=True).values[MAJORITY - 1 if len(who) >= MAJORITY else 0]


def usual_spread(layout: Layout, totals: Tensor) -> Tensor:
    """Return the variance[12] of looks within a domain: the median over all that rest on some images."""
    looks = Looks.read(layout, totals)
    enough = looks.images > NUMBERS
    if not bool(enough.any()):
        return totals.new_full((NUMBERS,), ALONE)
    middle: Tensor = torch.quantile(looks.var[enough], 0.5, 0)
    return middle


def sum_domains(shelf: Shelf, counted: Tensor, domains: int) -> Tensor:
    """Return the sums[K, S] of all domains."""
    return counted.new_zeros(domains, counted.shape[1]).index_add(0, shelf.domain, counted)


def hand_out(shelf: Shelf, counted: Tensor, sums: Tensor, headings: Tensor, names: Tensor) -> Download:
    """Return what N devices receive, whose own domains have names[N, K], given what all parts and domains count."""
    devices, domains = len(names), len(sums)
    book = sums.repeat(devices, 1, 1)
    book.flatten(0, 1).index_add_(0, shelf.device * domains + shelf.domain, counted, alpha=-1)
    part, slot = (names[shelf.device] == shelf.name[:, None]).nonzero(as_tuple=True)
    place = torch.full_like(names, -1).index_put((shelf.device[part], slot), shelf.domain[part])
    return Download(book, headings.expand(devices, -1), place, shelf.time.expand(devices))


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
