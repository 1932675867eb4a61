"""One domain of a server's book: the parts of its devices, and their sum in the last edition."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from fedctta.books.domain_sums import Array, DomainSums, add_up_domain, measure_lengths
from fedctta.books.editions import has_news
from fedctta.books.library import Rules
from fedctta.books.room import find_last
from fedctta.books.rows import Layout

Key = tuple[int, int]
"""Device and name: whose part it is."""

SHARE = 8  # a domain is added up when one in so many of its parts has changed


class Part(NamedTuple):
    """A part without its row: that is at the place `slot`."""

    device: int
    name: int
    version: int
    slot: int

    @property
    def key(self) -> Key:
        """Whose it is."""
        return self.device, self.name


class Domain:
    """At most `rules.parts` parts. `looks` is a place for the sum of their looks and other short sums."""

    def __init__(self, layout: Layout, rules: Rules, name: int, looks: Array) -> None:
        self.layout, self.rules, self.looks = layout, rules, looks
        self.looks[:] = 0
        self.heading = name  # what devices are told to call it; stays
        self.names: Counter[int] = Counter()  # parts of every name
        self.parts: dict[Key, Part] = {}
        self.voices: Counter[int] = Counter()  # parts of every device
        self.lengths = np.zeros(0, looks.dtype)  # of the moments of all voices
        self.edition, self.time = 0, 0
        self._announced, self._announced_at = np.zeros(layout.width, looks.dtype), 0  # the last edition, and its time
        self._rows = np.empty((rules.parts, layout.width), looks.dtype)
        self._free = list(range(rules.parts))
        self._ages: list[tuple[int, int, int]] = []  # version, -device and name of all parts, in order
        self._changed = 0
        self._sums: DomainSums | None = None
        self._places: dict[Key, int] = {}  # of the parts in these sums

    def row(self, part: Part) -> Array:
        """Return the row[S] of a part."""
        row: Array = self._rows[part.slot]
        return row

    @property
    def is_due(self) -> bool:
        """Whether so many parts have changed that the domain has to be added up."""
        return SHARE * self._changed >= len(self.parts)

    @property
    def oldest(self) -> int:
        """The version up to which no part of another device has room (`versions`); 0 where there is room."""
        return 0 if self._free or len(self.voices) < len(self.parts) else self._ages[0][0] - 1

    def make_room(self, device: int, name: int, version: int) -> Key | None:
        """Return whose part has to go for another one, which may be that one; None if there is room."""
        if self._free:
            return None
        if len(self.voices) == len(self.parts) and device not in self.voices:
            _, minus, last = min(self._ages[0], (version, -device, name))
            return -minus, last
        told = [*((p.device, p.version, p.name) for p in self.parts.values()), (device, version, name)]
        found = told[find_last(told)]
        return found[0], found[2]

    def put(self, device: int, name: int, version: int, row: Array) -> None:
        """Add a part, for which there is room."""
        part = Part(device, name, version, self._free.pop())
        self.parts[part.key] = part
        self.voices[device] += 1
        self.names[name] += 1
        insort(self._ages, (version, -device, name))
        self._rows[part.slot] = row
        self.looks += row[: self.layout.short]
        self._changed += 1

    def take_out(self, key: Key, to_replace: bool = False) -> Part:
        """Take out a part and what it counts; `to_replace`: another one comes, and both are one change."""
        part = self.parts.pop(key)
        for counter, one in ((self.voices, part.device), (self.names, part.name)):
            counter[one] -= 1
            if not counter[one]:
                del counter[one]
        row = self._rows[part.slot]
        del self._ages[bisect_left(self._ages, (part.version, -part.device, part.name))]
        if self._sums is not None and key in self._places:
            self._sums.sums[:] -= self._sums.find_share(self.layout, row, self._places.pop(key))
        self.looks -= row[: self.layout.short]
        self._free.append(part.slot)
        self._changed += not to_replace
        return part

    def measure(self) -> None:
        """Find out how long the moments of all voices are."""
        _, rows, voice = self._gather()
        self.lengths = measure_lengths(rows, self.layout, voice)

    def add_up(self, time: int, far: float, edition: int) -> None:
        """Add up all parts, at a time: a new edition, if there is news. `measure` comes first."""
        parts, rows, voice = self._gather()
        faded = np.array([self._fade(time - part.version) for part in parts], rows.dtype)
        self._sums = add_up_domain(rows, faded, self.layout, self.rules, voice, self.lengths, far)
        self._places = {part.key: place for place, part in enumerate(parts)}
        self.looks[:] = rows[:, : self.layout.short].sum(0)  # anew, so that rounding does not add up
        self.time, self._changed = time, 0
        if has_news(self.layout, self._announced * self._fade(time - self._announced_at), self._sums.sums):
            self.edition, self._announced, self._announced_at = edition, self._sums.sums.copy(), time

    def follow(self, other: Domain) -> None:
        """Go on with the heading and the edition of another one that was arranged in another way."""
        self.heading, self.edition = other.heading, other.edition
        self._announced, self._announced_at = other._announced, other._announced_at

    def sum_others(self, device: int, time: int) -> Array:
        """Return the sums[S] at a time, without a device's own parts."""
        assert self._sums is not None  # the first part is added up at once
        sums = self._sums.sums
        for key in (
            [key for key in self.parts if key[0] == device and key in self._places] if self.voices[device] else ()
        ):
            sums = sums - self._sums.find_share(self.layout, self.row(self.parts[key]), self._places[key])
        return sums * np.float32(self._fade(time - self.time))

    def _fade(self, age: int) -> float:
        return float(2 ** (-max(age, 0) / self.rules.half_life))

    def _gather(self) -> tuple[list[Part], Array, Array]:
        """Return all parts in the order of their places, their rows and their voices."""
        parts = sorted(self.parts.values(), key=attrgetter("slot"))
        rows = self._rows[[part.slot for part in parts]] if self._free else self._rows
        number = {device: n for n, device in enumerate(dict.fromkeys(part.device for part in parts))}
        return parts, rows, np.array([number[part.device] for part in parts])
