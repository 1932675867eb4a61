"""A server's book that is kept up to date exchange by exchange, for any number of devices.

The store holds the parts of a `library.Shelf` and keeps to the same rules, but an exchange costs only what it changes:

    check      the rows that were sent (`plausibility`)
    keep       parts that are new, in place of older ones; parts that are not in the device's list leave
    arrange    a name that nobody has used before, against all domains; other names have their domains
    add up     a domain of which 1/8 of the parts have changed since it was last added up (`domain_sums`)
    answer     with the domains that have news for the device, without its own parts (`editions`)

Until a domain is added up, its sums lack what has come, and no longer hold what has left. The rest of the rules is
applied to all parts at once by `refresh`: after it the store holds what `arrange` and `add_up` make of its parts. That
happens on request, after a restart, and when eight times as many parts have come as there is room for.

The store keeps at most domains x parts rows. Of other devices it remembers the time of their newest list
(`Shelf.heard`), which is what lets devices change servers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedctta.books.counting import find_limit
from fedctta.books.domain import Domain, Key
from fedctta.books.domain_sums import Array
from fedctta.books.editions import Answer
from fedctta.books.library import Rules, Shelf, arrange, find_headings, from_tensors, to_tensors, usual_spread
from fedctta.books.plausibility import find_honest
from fedctta.books.recognition import Looks
from fedctta.books.room import MAJORITY, choose_domains
from fedctta.books.rows import Layout
from fedctta.core.network import Tensors

TURNOVERS = 8  # times that all places may be taken anew before everything is arranged again
REGION = 1 << 40  # editions of one server


class Letter(NamedTuple):
    """What a device sends: its time, its list of domains, the rows[Q, S] that the server needs, and what it has.

    The list has names[L] and versions `changed`[L]; `which`[Q] are the places in it of the rows. `held`[H] are the
    editions that the device has.
    """

    device: int
    time: int
    name: Tensor
    changed: Tensor
    which: Tensor
    rows: Tensor
    held: Tensor


class Store:
    """The parts of all devices. `region` tells the editions of several servers apart; `refused` counts letters."""

    def __init__(self, layout: Layout, rules: Rules, region: int = 0) -> None:
        self.layout, self.rules, self.refused = layout, rules, 0
        self._editions = region * REGION
        self._heard: dict[int, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._domains: dict[int, Domain] = {}
        self._mine: dict[int, dict[int, int]] = {}  # of every device, the domains of its parts, by name
        self._names: dict[int, int] = {}  # the domain of every name
        self._ages: list[tuple[int, int, int]] = []  # version, device and name of all parts, in order
        self._looks = torch.zeros(self.rules.domains, self.layout.short)
        self._usual: Tensor | None = None
        self._came = 0

    @property
    def time(self) -> int:
        """The time of the third device from the latest, or the latest if there are fewer (`library.find_time`)."""
        latest: dict[int, int] = {}
        for version, device, _ in reversed(self._ages):
            latest.setdefault(device, version)
            if len(latest) == MAJORITY:
                return version
        return max(latest.values(), default=0)

    def list_needless(self, device: int) -> Tensors:
        """Return the names[P] and versions[P] up to which nothing is needed of a device (`versions.leave_out`)."""
        needless = [(d.heading, oldest) for d in self._domains.values() if (oldest := d.oldest)]
        needless += [(name, self._domains[k].parts[device, name].version) for name, k in self._of(device).items()]
        name, version = torch.tensor(needless, dtype=torch.int64).reshape(-1, 2).T
        return {"name": name, "version": version}

    @torch.inference_mode()
    def exchange(self, letter: Letter) -> Answer | None:
        """Take what a device has sent, and answer; None: it cannot be true, and nothing has changed."""
        names, versions = letter.name.tolist(), letter.changed.tolist()
        if not self._is_possible(letter, names, versions):
            self.refused += 1
            return None
        found = self._receive(letter, names, versions)
        if self._came >= TURNOVERS * self.rules.domains * self.rules.parts:
            self.refresh()
            found = {}
        return self._answer(letter, names, found)

    def _of(self, device: int) -> dict[int, int]:
        return self._mine.get(device, {})

    def _is_possible(self, letter: Letter, names: list[int], versions: list[int]) -> bool:
        if 0 in names or len(set(names)) < len(names) or any(not 0 < version <= letter.time for version in versions):
            return False
        mine, sent = self._of(letter.device), letter.which.tolist()
        rows, name, changed = letter.rows, letter.name[letter.which], letter.changed[letter.which]
        kept = [
            self._domains[mine[n]].parts[letter.device, n] for k, n in enumerate(names) if n in mine and k not in sent
        ]
        if kept:  # all images together are no more than its time allows
            rows = torch.cat(
                [rows, torch.from_numpy(np.stack([self._domains[mine[part.name]].row(part) for part in kept]))]
            )
            name = torch.cat([name, torch.tensor([part.name for part in kept])])
            changed = torch.cat([changed, torch.tensor([part.version for part in kept])])
        if not len(name):
            return True
        return bool(find_honest(self.layout, rows[None], name[None], changed[None], torch.tensor([letter.time])))

    def _receive(self, letter: Letter, names: list[int], versions: list[int]) -> dict[int, int]:
        """Keep what is new; return the domains found for the names of rows."""
        device = letter.device
        if letter.time < self._heard.get(device, -1):
            return {}
        self._heard[device] = letter.time
        touched: set[int] = set()
        for name, k in [(n, k) for n, k in self._of(device).items() if n not in names]:
            self._take_out(k, (device, name))
            touched.add(k)
        found: dict[int, int] = {}
        rows = letter.rows.numpy()
        odds: Tensor | None = None
        for n, which in enumerate(letter.which.tolist()):
            name = names[which]
            if name in self._names:
                k = self._names[name]
            else:
                odds = self._compare(letter.rows) if odds is None else odds
                k = self._choose_domain(odds[n])
                if k < 0:
                    k, odds = self._begin(device, name, versions[which]), None
            found[name] = k
            touched.add(k)
            if k >= 0:
                self._keep(k, device, name, versions[which], rows[n])
        self._add_up(k for k in touched if k in self._domains and self._domains[k].is_due)
        return found

    def _compare(self, rows: Tensor) -> Tensor:
        """Return the log-odds[Q, K] that rows[Q, S] are of the domains; -inf where there is none."""
        if self._usual is None:
            self._usual = usual_spread(self.layout, self._looks[sorted(self._domains)])
        told, known = (Looks.read(self.layout, each) for each in (rows, self._looks))
        return self.rules.recogniser.same(told, known, self._usual)

    def _choose_domain(self, odds: Tensor) -> int:
        best = int(odds.argmax())
        return best if float(odds[best]) > 0 else -1

    def _begin(self, device: int, name: int, version: int) -> int:
        """Begin a domain, and return its place; -1 if it has no room."""
        if len(self._domains) < self.rules.domains:
            k = next(k for k in range(self.rules.domains) if k not in self._domains)
        elif (k := self._make_room(device, version)) < 0:
            return k
        self._domains[k] = Domain(self.layout, self.rules, name, self._looks[k].numpy())
        self._names[name], self._usual = k, None
        return k

    def _make_room(self, device: int, version: int) -> int:
        """Let a domain go for a new one of a device; return its place, or -1 if the new one has to go."""
        live = sorted(self._domains)
        parts = [(i, p.device, p.version) for i, k in enumerate(live) for p in self._domains[k].parts.values()]
        where, who, seen = torch.tensor([*parts, (len(live), device, version)]).T
        kept = choose_domains(where, who, seen, self.rules.domains, self.rules.alone)
        gone = int(kept.int().argmin())
        if gone == len(live):
            return -1
        for key in list(self._domains[live[gone]].parts):
            self._take_out(live[gone], key)
        return live[gone]

    def _keep(self, k: int, device: int, name: int, version: int, row: Array) -> None:
        """Keep a part of a domain, if it is new and has room."""
        known = self._domains[k].parts.get((device, name))
        if known and known.version >= version:
            return
        last = known.key if known else self._domains[k].make_room(device, name, version)
        if last == (device, name) and not known:
            return
        if last:
            self._take_out(k, last, to_replace=True)
        self._put(k, device, name, version, row)

    def _put(self, k: int, device: int, name: int, version: int, row: Array) -> None:
        self._domains[k].put(device, name, version, row)
        self._mine.setdefault(device, {})[name] = k
        self._names[name] = k
        insort(self._ages, (version, device, name))
        self._came += 1

    def _take_out(self, k: int, key: Key, to_replace: bool = False) -> None:
        """Let a part go; an empty domain goes too."""
        device, name = key
        part = self._domains[k].take_out(key, to_replace)
        del self._ages[bisect_left(self._ages, (part.version, device, name))]
        del self._mine[device][name]
        if not self._mine[device]:
            del self._mine[device]
        domain = self._domains[k]
        if not domain.names[name] and name != domain.heading:
            del self._names[name]
        if not domain.parts and not to_replace:
            del self._domains[k], self._names[domain.heading]
            self._looks[k], self._usual = 0, None

    def _add_up(self, due: Iterable[int]) -> None:
        """Add up domains, each a new edition."""
        due = sorted(due)
        for k in due:
            self._domains[k].measure()
        if due:
            lengths = np.concatenate([domain.lengths for domain in self._domains.values()])
            far = float(find_limit(torch.from_numpy(lengths[lengths >= 0]), self.rules.clip))
        for k in due:
            self._editions += 1
            self._domains[k].add_up(self.time, far, self._editions)

    def _answer(self, letter: Letter, names: list[int], found: dict[int, int]) -> Answer:
        time, held = self.time, set(letter.held.tolist())
        headings, editions = [0] * self.rules.domains, [0] * self.rules.domains
        for k, domain in self._domains.items():
            headings[k], editions[k] = domain.heading, domain.edition
        new = [k for k, domain in sorted(self._domains.items()) if domain.edition not in held]
        rows = np.empty((len(new), self.layout.width), np.float32)
        for n, k in enumerate(new):
            rows[n] = self._domains[k].sum_others(letter.device, time)
        places = [self._names.get(name, found.get(name, -1)) for name in names]
        heading, edition, place, which = (torch.tensor(x, dtype=torch.int64) for x in (headings, editions, places, new))
        return Answer(heading, edition, place, which, torch.from_numpy(rows), time)

    @torch.inference_mode()
    def withdraw(self, device: int) -> None:
        """Take out all that a device has sent."""
        self._heard.pop(device, None)
        mine = list(self._of(device).items())
        for name, k in mine:
            self._take_out(k, (device, name))
        self._add_up({k for _, k in mine} & self._domains.keys())

    def shelf(self) -> Shelf:
        """Return all parts."""
        parts = sorted((part, k) for k, domain in self._domains.items() for part in domain.parts.values())
        told = [(part.device, part.name, part.version, k) for part, k in parts]
        device, name, version, domain = torch.tensor(told, dtype=torch.int64).reshape(-1, 4).T.contiguous()
        rows = [self._domains[k].row(part) for part, k in parts]
        known, heard = torch.tensor(sorted(self._heard.items()), dtype=torch.int64).reshape(-1, 2).T.contiguous()
        held = torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, self.layout.width)
        return Shelf(held, device, name, version, domain, torch.tensor(self.time), known, heard)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Arrange all parts and add up all domains."""
        self._load(arrange(self.shelf(), self.layout, self.rules), list(self._domains.values()))

    def _load(self, shelf: Shelf, before: Iterable[Domain] = ()) -> None:
        """Hold the parts of a shelf that is arranged; domains go on with headings and editions of those before."""
        self._clear()
        self._heard = dict(zip(shelf.known.tolist(), shelf.heard.tolist(), strict=True))
        headings = find_headings(shelf, self.rules.domains).tolist()
        columns = (tensor.tolist() for tensor in (shelf.domain, shelf.device, shelf.name, shelf.version))
        for k, device, name, version, row in zip(*columns, shelf.rows.numpy(), strict=True):
            if k not in self._domains:
                self._domains[k] = Domain(self.layout, self.rules, headings[k], self._looks[k].numpy())
            self._put(k, device, name, version, row)
        self._follow(before)
        self._add_up(self._domains)
        self._came = 0

    def _follow(self, before: Iterable[Domain]) -> None:
        """Let every domain go on with what devices know of the one that most of its parts were in."""
        came = {key: domain for domain in before for key in domain.parts}
        taken = set()
        for k, domain in sorted(self._domains.items()):
            followed = Counter(came[key] for key in domain.parts if key in came).most_common(1)
            for other, _ in followed:
                if other not in taken and self._names.get(other.heading, k) == k:
                    domain.follow(other)
                    taken.add(other)
            self._names[domain.heading] = k

    def to_tensors(self) -> Tensors:
        """Return all that a restart needs."""
        return to_tensors(self.shelf()) | {"editions": torch.tensor(self._editions)}

    @staticmethod
    @torch.inference_mode()
    def from_tensors(layout: Layout, rules: Rules, tensors: Tensors) -> Store:
        """Undo `to_tensors`; or hold the parts of a shelf, such as a root's (`library.merge`)."""
        store = Store(layout, rules)
        store._editions = int(tensors.get("editions", torch.tensor(0)))
        store._load(arrange(from_tensors(tensors), layout, rules))
        return store
