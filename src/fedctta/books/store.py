"""The server's book for many devices: `library`, kept up to date part by part instead of added up at every exchange.

Every domain has room for its `parts` newest parts, in tensors that are there from the start, so that memory is

    2 * domains * parts * width * 4 bytes        (rows, and what each counts)

for any number of devices. An exchange replaces the parts of one device and corrects the sums of their domains. Three
things that concern all parts at once are done now and then, and at once by `refresh`:

    fading    sums are those at a fixed time; handed out, they are multiplied by 2^(-(now - then) / half life)
    medians   a new part is pulled to the median that its domain had; medians are taken anew when `stale` times as many
              parts have come as the domain has
    domains   a new name joins the domain it looks most like, or starts one; after `names` new names all are arranged,
              and the usual variance of looks is taken anew

After `refresh` a store hands out what `library` would, and with stale = names = 0 always.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.books.library import (
    GROUPS,
    MAJORITY,
    Download,
    Rules,
    Shelf,
    add_up,
    arrange,
    usual_spread,
)
from fedctta.books.recognition import TINY, Looks
from fedctta.books.rows import Layout

FAR = 10  # half lives after which sums are taken to a new time, before their weights grow too large


class Changes(NamedTuple):
    """What a device receives that knows what was there at `since`: rows[C, S] of the domains which[C] that changed.

    The rows of all others only fade, which a device does itself. `tick` is the next `since`.
    """

    which: Tensor
    rows: Tensor
    heading: Tensor
    place: Tensor
    time: int
    tick: int


class Store:
    """All parts, by domain k and place m: rows[K, M, S], what each counts[K, M, S], and their sums[K, S]."""

    def __init__(self, layout: Layout, rules: Rules | None = None, stale: float = 4.0, names: int = 10_000) -> None:
        self.layout, self.rules, self.stale, self.names = layout, rules or Rules(), stale, names
        domains, parts, width = self.rules.domains, self.rules.parts, layout.width
        self.rows, self.counted = (torch.zeros(domains, parts, width) for _ in range(2))
        self.middle, self.sums = (torch.zeros(domains, width) for _ in range(2))
        self.device, self.name, self.version, self.seen = (
            torch.zeros(domains, parts, dtype=torch.int64) for _ in range(4)
        )
        self.headings, self.rearranged = torch.zeros(domains, dtype=torch.int64), 0
        groups = [(count, group) for count, names in GROUPS.items() for group in names]
        self._groups = [(layout.parts[group], layout.parts[count].start) for count, group in groups]
        self._limits = torch.full((domains, len(groups) + 1), torch.inf)  # the last: counts, which are not pulled
        self._group = torch.full((width,), len(groups))
        for g, (columns, _) in enumerate(self._groups):
            self._group[columns] = g
        self._belongs = torch.nn.functional.one_hot(self._group, len(groups) + 1).float()
        self._starts = [layout.parts[count].start for count in GROUPS]
        self._images, self._totals = torch.zeros(domains, parts), torch.zeros(domains, layout.short)
        self._usual = usual_spread(layout, self._totals)
        self._counts = torch.zeros(width, dtype=torch.int64)  # where the number of images of every column stands
        for (columns, count), (name, _) in zip(self._groups, groups, strict=True):
            self._counts[columns] = self._counts[layout.parts[name]] = count
        self._places: dict[int, dict[int, tuple[int, int]]] = {}  # by device and name
        self._homes: dict[int, list[int]] = {}  # by name: the domains of its parts, one and the same
        self._free = [list(range(parts)) for _ in range(domains)]
        self._came = [0] * domains
        self.time = self.tick = self._then = self._new = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in vars(self).values() if isinstance(t, Tensor))

    def receive(self, device: int, names: Tensor, versions: Tensor, rows: Tensor) -> None:
        """Take up the parts[Q] of a device, which has no others; those that are not newer change nothing."""
        self.tick += 1
        known = self._places.get(device, {})
        listed, times = names.tolist(), versions.tolist()
        for name in [name for name in known if name not in listed]:  # it has united two domains
            self._remove(device, name)
        touched: list[tuple[int, int]] = []
        for q, (name, version) in enumerate(zip(listed, times, strict=True)):
            self.time = max(self.time, version)
            place = known.get(name) or self._find_place(name, version, device, rows[q])
            if place and (name not in known or version > int(self.version[place])):
                self._put(place, device, name, version, rows[q])
                touched.append(place)
        if self._new > self.names or not self.names or self.time - self._then > FAR * self.rules.half_life:
            self.refresh()
        else:
            self._count(touched)

    def _find_place(self, name: int, version: int, device: int, row: Tensor) -> tuple[int, int] | None:
        """Return where a new part goes: the domain of its name or of its looks; None if it is older than all there."""
        k = self._homes[name][0] if name in self._homes else self._find_domain(row)
        if self._free[k]:
            return k, self._free[k][-1]
        oldest = self.version[k] == self.version[k].min()
        m = int(torch.where(oldest, self.device[k], -1).argmax())
        if (version, -device) < (int(self.version[k, m]), -int(self.device[k, m])):
            return None
        self._remove(int(self.device[k, m]), int(self.name[k, m]), replaced=True)
        return k, m

    def _find_domain(self, row: Tensor) -> int:
        """Return the domain that a new name looks like; or a free one; or the one that was seen longest ago."""
        self._new += 1
        one, all_ = (Looks.read(self.layout, part) for part in (row[None, : self.layout.short], self._totals))
        odds = self.rules.recogniser.same(one, all_, self._usual)[0]
        best = int(odds.argmax())
        if float(odds[best]) > 0:
            return best
        k = int(self.version.amax(1).argmin())
        for m in (self.name[k] != 0).nonzero().flatten().tolist():
            self._remove(int(self.device[k, m]), int(self.name[k, m]))
        return k

    def _put(self, place: tuple[int, int], device: int, name: int, version: int, row: Tensor) -> None:
        k, m = place
        end = self.layout.short
        if m in self._free[k]:
            self._free[k].remove(m)
            self._homes.setdefault(name, []).append(k)
        self._totals[k] += row[:end] - self.rows[k, m, :end]
        self.rows[k, m], self.device[k, m], self.name[k, m], self.version[k, m] = row, device, name, version
        self.seen[k, m] = self.tick
        self._places.setdefault(device, {})[name] = place

    def _remove(self, device: int, name: int, replaced: bool = False) -> None:
        """Take out one part."""
        k, m = self._places[device].pop(name)
        if not self._places[device]:
            del self._places[device]
        self._homes[name].pop()
        if not self._homes[name]:
            del self._homes[name]
        self._free[k].append(m)
        self.sums[k] -= self.counted[k, m]
        self._totals[k] -= self.rows[k, m, : self.layout.short]
        for tensor in (self.rows, self.counted, self._images, self.device, self.name, self.version):
            tensor[k, m] = 0
        if not replaced:
            self.seen[k] = self.tick  # what is left has changed as a whole
        self._head(k)

    def _head(self, k: int) -> None:
        names = self.name[k]
        least = torch.where(names == 0, torch.iinfo(torch.int64).max, names).min()
        self.headings[k] = least if bool(names.any()) else 0

    def _count(self, touched: list[tuple[int, int]]) -> None:
        """Correct the sums of the domains of parts that have come."""
        for k in {k for k, _ in touched}:
            self._came[k] += sum(k == other for other, _ in touched)
            self._head(k)
            if self._came[k] > self.stale * (self.rules.parts - len(self._free[k])):
                self._add_up(k)
        late = [(k, m) for k, m in touched if self._came[k]]
        if not late:
            return
        ks, ms = (torch.tensor(column) for column in zip(*late, strict=True))
        rows, middle = self.rows[ks, ms], self.middle[ks]
        images = rows[:, :1]
        over = rows[:, self._counts].clamp(min=0).minimum(images)
        apart = rows / over.clamp_min(TINY) - middle
        distance = (apart.square() @ self._belongs).sqrt()
        share = (self._limits[ks] / distance.clamp_min(TINY)).clamp_max(1)
        means = torch.addcmul(middle, apart, share[:, self._group])
        means[:, self._starts] = 1.0
        capped = self._weigh(self.version[ks, ms])[:, None] * (self.rules.most / images.clamp_min(TINY)).clamp_max(1)
        counted = capped * over * means
        for i, (k, m) in enumerate(late):
            self.sums[k] += counted[i] - self.counted[k, m]
            self.counted[k, m] = counted[i]
            self._images[k, m] = counted[i, 0]

    def _weigh(self, version: Tensor) -> Tensor:
        return torch.exp2((version - self._then) / self.rules.half_life)

    def _add_up(self, k: int) -> None:
        """Take the medians of a domain anew, and its sums."""
        used = (self.name[k] != 0).nonzero().flatten()
        self._came[k] = 0
        self.counted[k], self.sums[k], self._images[k], self._limits[k], self.middle[k] = 0, 0, 0, torch.inf, 0
        if not len(used):
            return
        shelf = self._take(k, used)
        self.counted[k, used] = add_up(shelf, self.layout, self.rules)
        self.sums[k], self._images[k] = self.counted[k].sum(0), self.counted[k, :, 0]
        images = shelf.rows[:, 0]
        for g, (columns, count) in enumerate(self._groups):
            over = shelf.rows[:, count].clamp(min=0).minimum(images)
            means = (shelf.rows[:, columns] / over.clamp_min(TINY)[:, None])[over > 0]
            if len(means) >= MAJORITY:
                self.middle[k, columns] = means.T.contiguous().median(1).values  # rows in order are faster
                self._limits[k, g] = self.rules.clip * (means - self.middle[k, columns]).norm(dim=1).median()

    def _take(self, k: int, used: Tensor) -> Shelf:
        """Return the parts of one domain, as at the fixed time."""
        zero = torch.zeros_like(used)
        parts = (self.rows[k, used], self.device[k, used], self.name[k, used], self.version[k, used])
        return Shelf(*parts, zero, torch.tensor(self._then))

    def refresh(self) -> None:
        """Arrange all parts and take all medians and sums anew."""
        self.load(arrange(self.shelf(), self.layout, self.rules))

    def shelf(self) -> Shelf:
        """Return all parts, for a checkpoint or a root."""
        ks, ms = (self.name != 0).nonzero(as_tuple=True)
        order = sorted(range(len(ks)), key=lambda i: (int(self.device[ks[i], ms[i]]), int(self.name[ks[i], ms[i]])))
        ks, ms = ks[order], ms[order]
        parts = (self.rows[ks, ms], self.device[ks, ms], self.name[ks, ms], self.version[ks, ms])
        return Shelf(*parts, ks, torch.tensor(self.time))

    def load(self, shelf: Shelf) -> None:
        """Hold these parts and no others."""
        seen = {
            (int(self.device[place]), int(self.name[place])): (place[0], int(self.seen[place]))
            for places in self._places.values()
            for place in places.values()
        }
        for tensor in (self.rows, self.device, self.name, self.version, self.seen, self.headings, self._totals):
            tensor.zero_()
        self._places, self._homes, self._new = {}, {}, 0
        self._free = [list(range(self.rules.parts)) for _ in range(self.rules.domains)]
        self.time = self._then = int(shelf.time)
        used = [0] * self.rules.domains
        places = []
        for i, k in enumerate(shelf.domain.tolist()):
            place = (k, used[k])
            used[k] += 1
            device, name = int(shelf.device[i]), int(shelf.name[i])
            self._put(place, device, name, int(shelf.version[i]), shelf.rows[i])
            places.append((place, seen.get((device, name))))
        moved = {place[0] for place, before in places if before is None or before[0] != place[0]}
        for place, before in places:
            self.seen[place] = self.tick if place[0] in moved or before is None else before[1]
        self._usual = usual_spread(self.layout, self._totals)
        for k in range(self.rules.domains):
            self._head(k)
            self._add_up(k)

    def withdraw(self, device: int) -> None:
        """Take out anything that a device has sent."""
        self.tick += 1
        for name in list(self._places.get(device, {})):
            self._remove(device, name)
        self.refresh()

    def hand_out(self, device: int, names: Tensor) -> Download:
        """Return what a device receives, whose own domains have these names[K]: the sums of all others."""
        all_ = self._others(device, None)
        return Download(all_, self.headings.clone(), self._locate(device, names), torch.tensor(self.time))

    def hand_out_since(self, device: int, names: Tensor, since: int, news: float = 0.0) -> Changes:
        """Return the domains of which more than the share `news` of all images has come since a tick."""
        images = self._images
        fresh = torch.where(self.seen > since, images, 0).sum(1)
        emptied = (self.seen > since).any(1) & (fresh == 0)
        which = ((fresh > news * images.sum(1)) | emptied).nonzero().flatten()
        rows = self._others(device, which)
        return Changes(which, rows, self.headings.clone(), self._locate(device, names), self.time, self.tick)

    def _others(self, device: int, which: Tensor | None) -> Tensor:
        """Return the sums of some or all domains without a device's own parts, faded to now."""
        fade = 2.0 ** (-(self.time - self._then) / self.rules.half_life)
        numbers = range(self.rules.domains) if which is None else which.tolist()
        rows: Tensor = fade * (self.sums if which is None else self.sums[which])
        places = {k: i for i, k in enumerate(numbers)}
        for k, m in self._places.get(device, {}).values():
            if k in places:
                rows[places[k]].sub_(self.counted[k, m], alpha=fade)
        return rows

    def _locate(self, device: int, names: Tensor) -> Tensor:
        known = self._places.get(device, {})
        return torch.tensor([known[name][0] if name in known else -1 for name in names.tolist()])
