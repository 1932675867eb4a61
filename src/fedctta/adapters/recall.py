"""Recall: a device carries a book of domains, and predicts a batch with what the book holds for its domain.

A device recognises by itself which domain a batch is of (`books.recognition`), normalises with the statistics of that
domain, blended with the source's by a weight that is chosen without labels (`books.blending`, `books.weights`), and
adds the batch to the book, all in one pass. A batch that looks like no domain in the book starts a new one. On some
batches the five weights are compared: on image n of a domain when fewer than review_rate * log2(1 + n / 32) have been.

The book has two parts, both sums (`books.rows`): what the device itself has seen, and what it last received of all
others. What it has seen travels to the server as it is, so nothing is lost or counted twice, whatever happens to a
message. Sums fade with the time t, in images: by one half in `half_life` images.

With `inner`, a method that learns scales and shifts, what is learnt is remembered by domain too (`common.inner`). A
stay begins with what the device has learnt there, or else with the mean of what others have; when a book comes, both
are averaged, by the images they were learnt on. That is what a model without BatchNorm recalls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.inner import METHODS, Inner, Learner
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.books.blending import Blend, normalise_with
from fedctta.books.recognition import TINY, Looks, Recogniser
from fedctta.books.rows import BINS, WEIGHTS, Layout, encode_statistics, read_scale
from fedctta.books.weights import Chooser
from fedctta.core.appearance import ALONE, NUMBERS, appearance
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule
from fedctta.core.randomness import name_of
from fedctta.core.tensors import is_lone, may_hold
from fedctta.errors import UserError
from fedctta.registry import check_limits

HEED = 0.05  # beliefs below this change nothing
TWINS = 100  # images from which on two domains are compared with each other
LATELY = 200  # batches over which the usual variance of looks is averaged


LIMITS = {
    **{"domains": (1, None), "hazard": (0, 1), "tolerance": (0, None), "strange": (1, None), "prior": (0, None)},
    **{"start": (0, 1), "tie": (0, None), "collapse": (0, 1), "measure_from": (0, 1), "review_rate": (0, None)},
    **{"poor": (0, None), "half_life": (1, None), "lr": (0, None)},
}


class Page(NamedTuple):
    """What a device knows at time t: its short rows (without moments) added up, and the weights of both parts' rows."""

    short: Tensor  # [K, S']
    part: Tensor  # [K], what is left of the sums since they were last added to
    book: Tensor  # [K], the same of what was received; 0 where a domain was replaced since


@dataclass(frozen=True)
class Recall(Adapter):
    """Carry a book of domains: recognise a batch's domain, predict with its statistics, and add the batch."""

    name: ClassVar[str] = "recall"
    title: ClassVar[str] = "Recall"
    needs: ClassVar[tuple[Need, ...]] = ("batchnorm",)  # without an inner method
    pictures: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    reviews: ClassVar[bool] = True
    domains: int = 32  # in the book
    hazard: float = 0.1  # of a shift before a batch of 10
    tolerance: float = 0.01
    strange: float = 10.0
    prior: float = 4.0  # images that the source is worth
    start: float = 0.5  # weight of a domain on which nothing was scored
    tie: float = 0.03
    collapse: float = 0.3  # of all predictions: what one class may gain
    measure_from: float = 0.7  # the least weight with which a pass measures a domain
    review_rate: float = 16.0
    poor: float = 50.0  # measured images with which a score counts half
    half_life: float = 20_000.0  # of sums, in images
    inner: Inner = "none"
    lr: float = 1e-4  # of what the inner method learns

    def __post_init__(self) -> None:
        check_limits(self, LIMITS)
        if self.inner == "none" and self.lr != type(self).lr:
            raise UserError(
                f"recall.lr={self.lr} has no effect with recall.inner=none: drop it, or use an inner method"
            )

    @property
    def learner(self) -> Learner | None:
        """The inner method."""
        return None if self.inner == "none" else Learner(METHODS[self.inner], self.lr)

    @property
    def source_images(self) -> int:
        """As many as the inner method asks for."""
        return METHODS[self.inner].source_images if self.inner != "none" else 0

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return what the inner method learns from images of the source."""
        return {} if self.learner is None else self.learner.study(network, images, batch)

    def check(self, network: Network, batch: int) -> None:
        """Without an inner method there must be statistics to recall; with one, what it trains."""
        if self.learner is None:
            return self.require(network, "batchnorm", "recall.inner=tent")
        for need in self.learner.method.needs:
            self.require(network, need)

    def init(self, network: Network) -> Client:
        """Own nothing of the model; begin with an empty book."""
        device = network.device
        zero = torch.zeros((), dtype=torch.int64, device=device)
        rows = torch.zeros(self.domains, self._layout(network).width, device=device)
        return Client(
            {},
            {
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
                **(self.learner.start(network) if self.learner else {}),
            },
        )

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Recognise, predict, add."""
        return self.adapt_and_predict(network, client, x)[0]

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Recognise, predict, add: one pass."""
        layout, scale, images = self._layout(network), read_scale(network), len(x)
        looks = appearance(x)
        private, page = self._recognise(layout, client.private, looks)
        mixture = self._mix(layout, private, page)
        rule = normalise_with(scale, self._blend(layout, private, page, mixture, images))
        output = network(self._own(network, layout, private), x, rule)
        measured = images * self._measures(private, mixture)
        sums = {"images": looks.new_full((1,), images), "look": looks.sum(0), "square": looks.square().sum(0)}
        if may_hold(measured > 0):
            sums |= {"measured": measured, "moments": measured * encode_statistics(scale, output.statistics)}
        if self.learner:
            sums["trained"] = sums["images"]
        after = self._add(private, layout.row(looks, **sums))
        return Client({}, self._learn(network, layout, private, after, x, rule)), output.logits

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Recognise and predict; nothing is added."""
        return self.adapt_and_predict(network, client, x)[1]

    @property
    def receives(self) -> bool:
        """The device's own domains take their places in the book that it receives."""
        return True

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take up a book: what the device has seen moves to the places that the server has found for it.

        A domain that the server did not know yet takes a free place; if there is none, it is forgotten. Domains are
        found by the book's names, or by those that the device had sent: it may have got another book since.
        """
        private = client.private
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
        private = self._move(private, move) | {
            "name": torch.where(headed, private["heading"], name),
            "held": headed.to(private["held"].dtype),
            "time": torch.maximum(private["time"], private["received"]),
        }
        return client._replace(private=self._average(network, private))

    def _average(self, network: Network, private: Tensors) -> Tensors:
        """Return the private tensors with what was learnt averaged with what others have learnt in the same domains."""
        if self.learner is None:
            return private
        layout = self._layout(network)
        trained, theirs = (layout.of(private[rows], "trained")[:, None] for rows in ("part", "book"))
        theirs = theirs * private["held"][:, None]
        both = layout.of(private["part"], "learnt") + private["held"][:, None] * layout.of(private["book"], "learnt")
        mean = both / (trained + theirs).clamp_min(TINY)
        part = torch.cat([private["part"][:, : layout.parts["learnt"].start], trained * mean], 1)
        return private | {"part": part}

    def _move(self, private: Tensors, move: Tensor) -> Tensors:
        """Return the private tensors with what the device has seen at other places, move[new, old]; some may meet."""
        changed = torch.where(move, private["changed"], 0).amax(1)
        kept = self._fade((changed[:, None] * move).amax(0) - private["changed"])
        there = move.to(private["part"].dtype)
        known = there @ private["belief"][:-1]
        return private | {
            "part": there @ (private["part"] * kept[:, None]),
            "changed": changed,
            "belief": torch.cat([known, 1 - known.sum(0, keepdim=True)]).clamp_min(0),
        }

    def _unite(self, layout: Layout, private: Tensors) -> Tensors:
        """Return the private tensors with the two domains united that are most likely one, if there are such."""
        looks = Looks.read(layout, self._page(layout, private).short)
        enough = looks.images >= TWINS
        numbers = torch.arange(self.domains, device=enough.device)
        pairs = (enough[:, None] & enough) & (numbers[:, None] < numbers)
        recogniser = Recogniser(self.hazard, self.tolerance, self.strange)
        odds = torch.where(pairs, recogniser.same(looks, looks, private["usual"]), -torch.inf).flatten()
        best = odds.argmax()
        first, second = best // self.domains, best % self.domains
        twins = odds.amax() > 0
        move = numbers[:, None] == torch.where((numbers == second) & twins, first, numbers)
        book = private["held"][:, None] * private["book"]
        gone = (numbers == second) & twins
        return self._move(private, move) | {
            "book": move.to(book.dtype) @ book,
            "held": (move.to(book.dtype) @ private["held"]).clamp_max(1),
            "name": torch.where(gone, 0, private["name"]),
        }

    def go_back(self, healthy: Client, now: Client) -> Client:
        """Go back to an earlier book, but not in time: names and versions that others have seen are not used again."""
        return healthy._replace(private=healthy.private | {"time": now.private["time"]})

    def predicts_alike(self, communicates: bool) -> bool:
        """A batch is predicted while it is adapted to."""
        return True

    def is_due(self, client: Client) -> Tensor:
        """Whether too few images of the batch's domain have been scored."""
        private, layout = client.private, Layout(0)
        here = private["belief"][:-1].argmax(0, keepdim=True)
        row = self._page(layout, private, here).short
        goal = self.review_rate * (1 + layout.of(row, "images") / 32).log2()
        return (layout.of(row, "scored") < goal).squeeze(0)

    def review(self, network: Network, client: Client, x: Tensor) -> Client:
        """Compare the five weights on the batch; measure it with weight 1, if it was predicted with less.

        Two domains that turn out to be one are united.

        What is compared early rests on poor statistics: a score counts w = m / (m + poor), with m images measured.
        """
        if not network.norms:  # no statistics to weigh
            return client
        layout, scale, private, images = self._layout(network), read_scale(network), client.private, len(x)
        page = self._page(layout, private)
        anew = images * (1 - self._measures(private, self._mix(layout, private, page)))
        whole = self._blend(layout, private, page, torch.ones_like(page.part), anew)
        own = self._own(network, layout, private)

        def score(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            output = network(own, x, normalise_with(scale, Blend(weight * whole.known, weight * whole.batch)))
            logits = output.logits
            return entropy(logits).mean(), logits.softmax(-1).mean(0), encode_statistics(scale, output.statistics)

        uncertain, shares, moments = torch.func.vmap(score)(torch.tensor(WEIGHTS, device=x.device, dtype=x.dtype))
        shares = F.pad(shares, (0, -shares.shape[1] % BINS)).view(len(WEIGHTS), -1, BINS).sum(1)
        known = private["belief"][:-1] @ layout.of(page.short, "measured") + anew
        scored = images * known / (known + self.poor)
        row = layout.row(
            x,
            scored=scored,
            entropy=scored * uncertain,
            classes=scored * shares,
            measured=anew,
            moments=anew * moments[-1],
        )
        return client._replace(private=self._unite(layout, self._add(private, row)))

    def _layout(self, network: Network) -> Layout:
        layout = read_scale(network).layout
        if self.learner is None:
            return layout
        return Layout(layout.channels, sum(t.numel() for t in self.learner.weights(network).values()))

    def _learnt(self, layout: Layout, private: Tensors) -> Tensor:
        """Return d[K, P]: what the device has learnt in every domain, or else what others have."""
        trained, theirs = (layout.of(private[rows], "trained")[:, None] for rows in ("part", "book"))
        own = layout.of(private["part"], "learnt") / trained.clamp_min(TINY)
        received = private["held"][:, None] * layout.of(private["book"], "learnt") / theirs.clamp_min(TINY)
        return torch.where(trained > 0, own, received)

    def _own(self, network: Network, layout: Layout, private: Tensors) -> Tensors:
        """Return the scales and shifts of the batch's domains; none without an inner method."""
        if self.learner is None:
            return {}
        return self.learner.apply(network, private["belief"][:-1] @ self._learnt(layout, private))

    def _learn(
        self, network: Network, layout: Layout, before: Tensors, after: Tensors, x: Tensor, rule: NormRule
    ) -> Tensors:
        """Return the private tensors with one step of the inner method on the batch."""
        if self.learner is None:
            return after
        learnt, belief = self._learnt(layout, before), before["belief"][:-1]
        step, after = self.learner.step(network, belief @ learnt, after, x, rule)
        heed = (belief * (belief > HEED))[:, None]
        now, columns = (learnt + heed * step), layout.parts["learnt"]
        kept, trained = after["part"][:, columns], layout.of(after["part"], "trained")[:, None]
        part = torch.cat([after["part"][:, : columns.start], torch.where(heed > 0, trained * now, kept)], 1)
        return after | {"part": part}

    def _page(self, layout: Layout, private: Tensors, which: Tensor | None = None) -> Page:
        """Return what the device knows at its time, of all its domains or of some."""

        def pick(name: str) -> Tensor:
            return private[name] if which is None else private[name].index_select(0, which)

        part = self._fade(private["time"] - pick("changed"))
        book = self._fade(private["time"] - private["received"]) * pick("held")
        end = layout.short
        short = torch.addcmul(book[:, None] * pick("book")[:, :end], part[:, None], pick("part")[:, :end])
        return Page(short, part, book)

    def _fade(self, age: Tensor) -> Tensor:
        return torch.exp2(age.clamp_min(0) * (-1 / self.half_life))

    def _recognise(self, layout: Layout, private: Tensors, looks: Tensor) -> tuple[Tensors, Page]:
        """Return the private tensors with the belief after a batch, and a new domain if none fits; and the page."""
        images = len(looks)
        private = private | {"time": private["time"] + images, "batches": private["batches"] + 1}
        usual = private["usual"]
        now = looks.mean(0)
        spread = looks.var(0) if images > 1 else (now - private["last"]).square() / 2
        before = private["batches"] - (1 if images > 1 else 2)  # batches that tell of the spread
        usual = torch.where(before < 0, usual, torch.lerp(usual, spread, 1 / (before + 1).clamp(1, LATELY)))
        page = self._page(layout, private)
        known = Looks.read(layout, page.short)
        recogniser = Recogniser(self.hazard * min(1, images / 10) ** 0.5, self.tolerance, self.strange)
        belief = recogniser.update(private["belief"], now, images, known, usual)
        private |= {"usual": usual, "last": now, "belief": belief}
        new = belief[-1] > 0.5
        return self._begin(private, page, known.images, new) if may_hold(new) else (private, page)

    def _begin(self, private: Tensors, page: Page, images: Tensor, new: Tensor) -> tuple[Tensors, Page]:
        """Return private tensors and page with a new domain, where `new` says so, in place of the least known."""
        belief = private["belief"]
        here = (torch.arange(self.domains, device=belief.device) == images.argmin()) & new
        known = torch.where(here, belief[-1], belief[:-1] * ~(here & (images > 0)))
        belief = torch.cat([known, torch.where(new, 0, belief[-1])[None]])
        begun = private | {
            "belief": belief / belief.sum(),
            "name": torch.where(here, name_of(private["key"], private["time"]), private["name"]),
            "held": torch.where(here, 0, private["held"]),
            "part": torch.where(here[:, None], 0, private["part"]),
        }
        return begun, page._replace(
            short=torch.where(here[:, None], 0, page.short), book=torch.where(here, 0, page.book)
        )

    def _mix(self, layout: Layout, private: Tensors, page: Page) -> Tensor:
        """Return the weights a[K] of all domains."""
        return Chooser(self.start, self.tie, self.collapse).choose(layout, page.short)

    def _measures(self, private: Tensors, weights: Tensor) -> Tensor:
        """Return 1 if a batch is normalised with the statistics of its domains alone, else 0."""
        belief = private["belief"]
        return (belief[:-1] @ weights + belief[-1] * self.start > self.measure_from).to(weights.dtype)

    def _blend(self, layout: Layout, private: Tensors, page: Page, weights: Tensor, images: int | Tensor) -> Blend:
        """Return what to normalise a batch of `images` with, of which the book has no moments."""
        count = layout.of(page.short, "measured") + images + self.prior
        c = private["belief"][:-1] * weights / count
        moments = layout.parts["moments"]
        known = (c * page.part) @ private["part"][:, moments]
        if may_hold(page.book.any()):
            known = known + (c * page.book) @ private["book"][:, moments]
        unknown = private["belief"][-1] * self.start / (images + self.prior)
        return Blend(known, images * (c.sum() + unknown))

    def _add(self, private: Tensors, row: Tensor) -> Tensors:
        """Return the private tensors with a row[S] added to the batch's domains."""
        belief, changed, part = private["belief"][:-1], private["changed"], private["part"]
        there = belief > HEED
        if is_lone(belief):  # most rows stay as they are
            here = there.nonzero().squeeze(1)
            kept = self._fade(private["time"] - changed[here])[:, None]
            rows = torch.addcmul(part[here] * kept, belief[here, None], row)
            part = part.index_copy(0, here, rows)
        else:
            kept = torch.where(there, self._fade(private["time"] - changed), 1)[:, None]
            part = torch.addcmul(part * kept, (belief * there)[:, None], row)
        return private | {"part": part, "changed": torch.where(there, private["time"], changed)}
