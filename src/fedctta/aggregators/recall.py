"""Recall: the server adds up the books of all devices, and hands every device what the others have seen.

A device (adapter `recall`) uploads all it has seen, by domain; the server keeps the parts of every device and domain
apart, finds out which are of one domain, and sends every device the sums of all others (`books.library`). Nobody waits:
what a device receives counts from its next batch on. Uploads that cannot be true are refused, and `refused`[N] counts
them (`books.plausibility`). W_ij is how much of what device i predicts with comes from device
j, by images and by the belief of i in domains.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing
from fedctta.books.counting import add_up
from fedctta.books.library import (
    Lists,
    Rules,
    Shelf,
    arrange,
    find_headings,
    find_time,
    from_tensors,
    hand_out,
    limit,
    receive,
    sum_domains,
    to_tensors,
    withdraw,
)
from fedctta.books.noisy_book import is_noisy, tell
from fedctta.books.plausibility import find_honest
from fedctta.books.recognition import TINY, Recogniser
from fedctta.books.rows import Layout, layout_of
from fedctta.books.versions import leave_out, list_versions, put_back
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.ranges import AtLeastOne, Count, NotNegative, Share

HANDED = ("book", "heading", "place", "asked", "received")


@dataclass(frozen=True)
class Recall(Aggregator):
    """Add up what all devices have seen of every domain, and hand each what the others have seen."""

    name: ClassVar[str] = "recall"
    title: ClassVar[str] = "Recall"
    cumulative: ClassVar[bool] = True
    guarded: ClassVar[str] = "clip"
    partner: ClassVar[str] = "recall"
    domains: Count = 32
    parts: Count = 64
    clip: NotNegative = 2.0
    most: AtLeastOne = 2_000.0
    few: NotNegative = 30.0
    half_life: AtLeastOne = 20_000.0
    alone: Count = 4
    hazard: Share = 0.1
    tolerance: NotNegative = 0.01
    strange: AtLeastOne = 5.0
    min_images: Count = 1

    @property
    def rules(self) -> Rules:
        """How parts are kept and added up."""
        recogniser = Recogniser(self.hazard, self.tolerance, self.strange)
        return Rules(self.domains, self.parts, self.clip, self.most, self.few, self.half_life, self.alone, recogniser)

    def mixes(self, measured: bool) -> bool:
        """Clients receive what the server remembers."""
        return False

    def hands(self, private: Tensors) -> Tensors:
        """Replace the book of a device, and say where its own domains are in it."""
        return {name: private[name] for name in HANDED if name in private}

    def shares(self, network: Network, own: Tensors) -> Tensors:
        """Nothing of a model is sent; what a device has seen are signals."""
        return {}

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Send all that the device has seen, by domain, and its belief."""
        private = client.private
        if "part" not in private:
            return {}
        if is_noisy(private):
            return tell(layout_of(network), private)
        enough = private["part"][:, 0] >= self.min_images
        return {
            "part": torch.where(enough[:, None], Layout(0).without_own(private["part"]), 0),
            "name": torch.where(enough, private["name"], 0),
            "changed": private["changed"],
            "time": private["time"],
            "belief": private["belief"],
        }

    @property
    def least_images(self) -> int:
        """On how many images all that is shared rests; a device with noise sees to it itself."""
        return self.min_images

    def with_least(self, images: int) -> Recall:
        """Share no domain that rests on fewer images."""
        return replace(self, min_images=max(self.min_images, images))

    def recount(self, memory: Tensors, client: int) -> Tensors:
        """Tell the names and versions of the parts that the server has of a device."""
        return list_versions(from_tensors(memory), client, self.rules) if "rows" in memory else {}

    def leave_out(self, signals: Tensors, known: Tensors) -> Tensors:
        """Send only what has changed since."""
        return leave_out(signals, known) if signals and {"name", "version"} <= known.keys() else signals

    def put_back(self, signals: Tensors, client: int, memory: Tensors) -> Tensors:
        """Let the parts stand that have not changed."""
        return put_back(signals, from_tensors(memory), client) if signals and "rows" in memory else signals

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Keep the parts that are new, arrange them, and say who learns from whom."""
        if not uploads.signals:
            return torch.eye(len(uploads.active), device=uploads.active.device), memory
        part, name, changed, time = (uploads.signals[key] for key in ("part", "name", "changed", "time"))
        layout = layout_of(server.network, part.shape[-1])
        shelf = from_tensors(memory) if "rows" in memory else Shelf.empty(part.shape[-1], part.device)
        name = torch.where(layout.of(part, "images") == 0, 0, name)
        possible = find_honest(layout, part, name, changed, time)
        heard = uploads.active & possible
        sent = ((name != 0) & heard[:, None]).nonzero()
        who, slot = sent[:, 0], sent[:, 1]
        lists = Lists(heard.nonzero().squeeze(1), time[heard])
        shelf = receive(shelf, who, name[who, slot], changed[who, slot], part[who, slot], lists)
        if bool((shelf.domain < 0).any()):
            shelf = arrange(shelf, layout, self.rules)
        elif bool((torch.bincount(shelf.domain) > self.parts).any()):
            shelf = limit(shelf, self.rules)
        shelf = shelf._replace(time=find_time(shelf))
        refused = memory.get("refused", torch.zeros_like(uploads.active, dtype=torch.int64))
        refused = refused + (uploads.active & ~possible)
        return self._weigh(shelf, layout, uploads), to_tensors(shelf) | {"refused": refused}

    def locate(self, memory: Tensors) -> dict[int, list[int]]:
        """Return of every device the domains of its parts; the one that was changed last is where it is."""
        if "rows" not in memory:
            return {}
        shelf, found = from_tensors(memory), dict[int, list[int]]()
        parts = zip(*(t.tolist() for t in (shelf.version, shelf.device, shelf.domain)), strict=True)
        for _, device, domain in sorted(parts, reverse=True):
            if domain not in found.setdefault(device, []):
                found[device].append(domain)
        return found

    def withdraw(self, memory: Tensors, device: int) -> Tensors:
        """Return the memory without anything that a device has sent, as if it had never been there."""
        if "rows" not in memory:
            return memory
        shelf = withdraw(from_tensors(memory), device)
        return memory | to_tensors(arrange(shelf, Layout(0), self.rules))  # looks stand at the same place in all rows

    def _weigh(self, shelf: Shelf, layout: Layout, uploads: Uploads) -> Tensor:
        """Return W[N, N]."""
        images = layout.of(shelf.rows, "images")
        shape = (self.domains, len(uploads.active))
        by_domain = images.new_zeros(shape).index_put((shelf.domain, shelf.device), images, accumulate=True)
        share = by_domain / by_domain.sum(1, keepdim=True).clamp_min(TINY)
        same = uploads.signals["name"][shelf.device] == shelf.name[:, None]
        sure = (uploads.signals["belief"][shelf.device, :-1] * same).sum(1)
        belief = images.new_zeros(shape).index_put((shelf.domain, shelf.device), sure, accumulate=True)
        weights = belief.T @ share
        return weights + torch.diag(1 - weights.sum(1))

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Hand every device what all others have seen."""
        if not uploads.signals:
            return mixed, memory
        part, name = uploads.signals["part"], uploads.signals["name"]
        layout, shelf = layout_of(server.network, part.shape[-1]), from_tensors(memory)
        counted = add_up(shelf, layout, self.rules)
        sums, headings = sum_domains(shelf, counted, self.domains), find_headings(shelf, self.domains)
        book, heading, place, time = hand_out(shelf, counted, sums, headings, name)
        return {"book": book, "heading": heading, "place": place, "asked": name, "received": time}, memory
