"""The book that a device carries: what it has seen itself, what it last received of all others, and where it is now.

Both parts hold a row of sums for each of K domains (`rows`), and every domain stands at the same place in both. Sums
fade with the time t, in images: by one half in `half_life` images. They are faded when they are read or added to, so
that a domain that nobody visits costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.books.fused_notebook import Filter, add_fused, can_fuse_book, recognise_fused
from fedctta.books.recognition import FLOOR, LEAST, PULL, TINY, TWINS, Looks, Recogniser
from fedctta.books.rows import Layout
from fedctta.core.appearance import ALONE, NUMBERS
from fedctta.core.lone import is_lone
from fedctta.core.network import Tensors
from fedctta.core.randomness import name_of
from fedctta.core.tensors import may_hold

HEED = 0.05  # beliefs below this change nothing
LATELY = 200  # batches over which the usual variance of looks is averaged


class Page(NamedTuple):
    """What a device knows at time t: its short rows (without moments) added up, and the weights of both parts' rows."""

    short: Tensor  # [K, S']
    part: Tensor  # [K], what is left of the sums since they were last added to
    book: Tensor  # [K], the same of what was received; 0 where a domain was replaced since


@dataclass(frozen=True)
class Notebook:
    """How a device keeps its book: room for so many domains, how they are recognised, and how fast sums fade."""

    domains: int = 32
    half_life: float = 20_000.0
    recogniser: Recogniser = field(default_factory=Recogniser)

    def start(self, width: int, device: torch.device) -> Tensors:
        """Return an empty book with rows of so many numbers."""
        zero = torch.zeros((), dtype=torch.int64, device=device)
        rows = torch.zeros(self.domains, width, device=device)
        return {
            "part": rows,
            "changed": zero.expand(self.domains).clone(),
            "name": zero.expand(self.domains).clone(),
            "book": rows.clone(),
            "held": torch.zeros(self.domains, device=device),
            "received": zero,
            "heading": zero.expand(self.domains).clone(),
            "place": zero.expand(self.domains).clone(),
            "asked": zero.expand(self.domains).clone(),
            "belief": F.pad(torch.zeros(self.domains, device=device), (0, 1), value=1.0),
            "usual": torch.full((NUMBERS,), ALONE, device=device),
            "last": torch.zeros(NUMBERS, device=device),
            "batches": zero,
            "time": zero,
            "key": zero,
        }

    def page(self, layout: Layout, private: Tensors, which: Tensor | None = None) -> Page:
        """Return what the device knows at its time, of all its domains or of some."""

        def pick(name: str) -> Tensor:
            return private[name] if which is None else private[name].index_select(0, which)

        part = self.fade(private["time"] - pick("changed"))
        book = self.fade(private["time"] - private["received"]) * pick("held")
        end = layout.short
        short = torch.addcmul(book[:, None] * pick("book")[:, :end], part[:, None], pick("part")[:, :end])
        return Page(short, part, book)

    def fade(self, age: Tensor) -> Tensor:
        """Return what is left of sums after so many images."""
        return torch.exp2(age.clamp_min(0) * (-1 / self.half_life))

    def recognise(self, layout: Layout, private: Tensors, looks: Tensor) -> tuple[Tensors, Page]:
        """Return the private tensors with the belief after a batch, and a new domain if none fits; and the page."""
        images = len(looks)
        hazard = self.recogniser.hazard * min(1, images / 10) ** 0.5
        recogniser = replace(self.recogniser, hazard=hazard)
        if can_fuse_book(private["part"], images):
            look, rate = layout.parts["look"].start, -1 / self.half_life
            numbers = (hazard, recogniser.tolerance, recogniser.against_unknown(images), rate, LATELY)
            every = Filter(*numbers, FLOOR, LEAST, PULL, TINY, look, layout.short)
            after, found = recognise_fused(private, looks, every)
            return private | after, Page(*found)
        private = private | {"time": private["time"] + images, "batches": private["batches"] + 1}
        usual = private["usual"]
        now = looks.mean(0)
        spread = looks.var(0) if images > 1 else (now - private["last"]).square() / 2
        before = private["batches"] - (1 if images > 1 else 2)  # batches that tell of the spread
        usual = torch.where(before < 0, usual, torch.lerp(usual, spread, 1 / (before + 1).clamp(1, LATELY)))
        page = self.page(layout, private)
        known = Looks.read(layout, page.short)
        belief = recogniser.update(private["belief"], now, images, known, usual)
        private |= {"usual": usual, "last": now, "belief": belief}
        new = belief[-1] > 0.5
        return self.begin(private, page, known.images, new) if may_hold(new) else (private, page)

    def begin(self, private: Tensors, page: Page, images: Tensor, new: Tensor) -> tuple[Tensors, Page]:
        """Return private tensors and page with a new domain, where `new` says so, in place of the least known.

        Nothing is left of that one's sums on the page. They stand in the rows until something is added.
        """
        belief = private["belief"]
        here = (torch.arange(self.domains, device=belief.device) == images.argmin()) & new
        belief = torch.cat([torch.where(here, belief[-1], belief[:-1]), torch.where(new, 0, belief[-1])[None]])
        begun = private | {
            "belief": belief / belief.sum(),
            "name": torch.where(here, name_of(private["key"], private["time"]), private["name"]),
            "held": torch.where(here, 0, private["held"]),
        }
        return begun, Page(
            torch.where(here[:, None], 0, page.short), torch.where(here, 0, page.part), torch.where(here, 0, page.book)
        )

    def add(self, private: Tensors, row: Tensor, kept: Tensor) -> Tensors:
        """Return the private tensors with a row[S] added to the batch's domains, kept[K] of whose sums is left."""
        if can_fuse_book(private["part"]):
            return private | add_fused(private, row, kept, HEED)
        belief, changed, part = private["belief"][:-1], private["changed"], private["part"]
        there = belief > HEED
        if is_lone(belief):  # most rows stay as they are
            here = there.nonzero().squeeze(1)
            rows = torch.addcmul(part[here] * kept[here, None], belief[here, None], row)
            part = part.index_copy(0, here, rows)
        else:
            part = torch.addcmul(part * torch.where(there, kept, 1)[:, None], (belief * there)[:, None], row)
        return private | {"part": part, "changed": torch.where(there, private["time"], changed)}

    def move(self, private: Tensors, move: Tensor) -> Tensors:
        """Return the private tensors with what the device has seen at other places, move[new, old]; some may meet."""
        changed = torch.where(move, private["changed"], 0).amax(1)
        kept = self.fade((changed[:, None] * move).amax(0) - private["changed"])
        there = move.to(private["part"].dtype)
        known = there @ private["belief"][:-1]
        return private | {
            "part": there @ (private["part"] * kept[:, None]),
            "changed": changed,
            "belief": torch.cat([known, 1 - known.sum(0, keepdim=True)]).clamp_min(0),
        }

    def unite(self, layout: Layout, private: Tensors) -> Tensors:
        """Return the private tensors with the two domains united that are most likely one, if there are such."""
        looks = Looks.read(layout, self.page(layout, private).short)
        enough = looks.images >= TWINS
        numbers = torch.arange(self.domains, device=enough.device)
        pairs = (enough[:, None] & enough) & (numbers[:, None] < numbers)
        odds = torch.where(pairs, self.recogniser.same(looks, looks, private["usual"]), -torch.inf).flatten()
        best = odds.argmax()
        first, second = best // self.domains, best % self.domains
        twins = odds.amax() > 0
        move = numbers[:, None] == torch.where((numbers == second) & twins, first, numbers)
        book = private["held"][:, None] * private["book"]
        gone = (numbers == second) & twins
        return self.move(private, move) | {
            "book": move.to(book.dtype) @ book,
            "held": (move.to(book.dtype) @ private["held"]).clamp_max(1),
            "name": torch.where(gone, 0, private["name"]),
        }

    def receive(self, private: Tensors) -> Tensors:
        """Take up a book: what the device has seen moves to the places that the server has found for it.

        A domain that the server did not know yet takes a free place; if there is none, it is forgotten. Domains are
        found by the book's names, or by those that the device had sent: it may have got another book since.
        """
        live = private["name"] != 0
        titled = live[:, None] & (private["name"][:, None] == private["heading"])
        asked = live[:, None] & (private["name"][:, None] == private["asked"]) & (private["place"] >= 0)
        place = torch.where(asked.any(1), private["place"][asked.to(torch.int8).argmax(1)], -1)
        place = torch.where(titled.any(1), titled.to(torch.int8).argmax(1), place)
        moved = place >= 0
        numbers = torch.arange(self.domains, device=live.device)
        taken = (private["heading"] != 0) | ((place == numbers[:, None]) & moved).any(1)
        free = torch.argsort(taken.to(torch.int8), stable=True)
        rank = torch.cumsum(live & ~moved, 0) - 1
        found = live & ~moved & (rank < (~taken).sum())
        place = torch.where(moved, place, free[rank.clamp_min(0)])
        move = (place == numbers[:, None]) & (moved | found)  # [new, old]
        headed = private["heading"] != 0
        name = torch.where(move & found, private["name"], 0).sum(1)
        return self.move(private, move) | {
            "name": torch.where(headed, private["heading"], name),
            "held": headed.to(private["held"].dtype),
            "time": torch.maximum(private["time"], private["received"]),
        }
