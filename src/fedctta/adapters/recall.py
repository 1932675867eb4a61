"""Recall: a device carries a book of domains, and predicts a batch with what the book holds for its domain.

A device recognises by itself which domain a batch is of (`books.recognition`), normalises with the statistics of that
domain, blended with the source's by a weight that is chosen without labels (`books.blending`, `books.weights`), and
adds the batch to the book, all in one pass. A batch that looks like no domain in the book starts a new one. On some
batches three weights are compared: on image n of a domain when fewer than review_rate * log2(1 + n / 32) have been, in
every third batch at most. Only passes with the weight `largest` measure a domain: moments fit the weight they were
measured with, and a larger one corrects too much. So a domain with a smaller weight is measured by passes of their own:
its first images, `soon`, and then a share `survey` of its images, up to `enough`.

The book has two parts, both sums (`books.rows`): what the device itself has seen, and what it last received of all
others. What it has seen travels to the server as it is, so nothing is lost or counted twice, whatever happens to a
message. Sums fade with the time t, in images: by one half in `half_life` images.

With `inner`, a method that learns scales and shifts or, with `trains=all`, all weights, what is learnt is remembered by
domain too (`common.inner`). A stay begins with what the device has learnt there, or else with the mean of what others
have; when a book comes, both are averaged, by the images they were learnt on. That is what a model without BatchNorm
recalls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.inner import METHODS, WHOLE, Inner, Learner
from fedctta.adapters.common.needs import Need
from fedctta.books.blending import Blend, normalise_with
from fedctta.books.fused_notebook import Wants, blend_fused, can_fuse_book, lack_fused
from fedctta.books.learnt import average, note_step, read_learnt
from fedctta.books.notebook import HEED, Notebook, Page
from fedctta.books.recognition import Recogniser
from fedctta.books.rows import WEIGHTS, Layout, encode_statistics, read_scale
from fedctta.books.weights import LEAST, Chooser, compare_classes, count_classes, count_shares, find_usual
from fedctta.core.appearance import appearance
from fedctta.core.at_once import at_once
from fedctta.core.clients import Client
from fedctta.core.lone import is_lone
from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import constant, may_hold, mirror
from fedctta.errors import UserError
from fedctta.ranges import AtLeastOne, Count, NotNegative, Share

PICTURES = 4  # axes of a batch of pictures
GAP = 3  # batches from one comparison to the next
NEARLY = 0.9  # of the largest weight: what a batch that may be of two domains must have, to measure


@dataclass(frozen=True)
class Recall(Adapter):
    """Carry a book of domains: recognise a batch's domain, predict with its statistics, and add the batch."""

    name: ClassVar[str] = "recall"
    title: ClassVar[str] = "Recall"
    needs: ClassVar[tuple[Need, ...]] = ("batchnorm",)  # without an inner method
    looks: ClassVar[bool] = True
    waits: ClassVar[bool] = False
    reviews: ClassVar[bool] = True
    domains: Count = 32  # in the book
    hazard: Share = 0.1  # of a shift before a batch of 10
    tolerance: NotNegative = 0.01
    strange: AtLeastOne = 5.0
    prior: NotNegative = 4.0  # images that the source is worth
    start: Share = 0.5  # weight of a domain on which nothing was scored
    tie: NotNegative = 0.02
    largest: Share = 0.9  # weight; passes with it measure a domain
    review_rate: NotNegative = 16.0
    soon: NotNegative = 100.0  # images of a domain that are measured at once, whatever its weight
    survey: Share = 0.1  # of a domain's images: how many more are measured, up to `enough`
    enough: NotNegative = 1_000.0
    poor: NotNegative = 50.0  # measured images with which a score counts half
    mirror: Share = 1.0  # how much it counts, when weights are compared, that mirrored images are predicted otherwise
    half_life: AtLeastOne = 20_000.0  # of sums, in images
    inner: Inner = "none"
    trains: Literal["scales", "all"] = "scales"  # of the model, what the inner method trains in every domain
    lr: NotNegative = 1e-4  # of what the inner method learns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start > self.largest:
            raise UserError(f"recall.start={self.start} must be at most recall.largest={self.largest}")
        if self.inner == "none" and self.lr != type(self).lr:
            raise UserError(
                f"recall.lr={self.lr} has no effect with recall.inner=none: drop it, or use an inner method"
            )
        if self.trains == "all" and self.inner not in WHOLE:
            raise UserError(f"recall.trains=all needs recall.inner={' or '.join(WHOLE)}, not {self.inner}")

    @property
    def learner(self) -> Learner | None:
        """The inner method."""
        return None if self.inner == "none" else Learner(METHODS[self.inner], self.lr, self.trains == "all")

    @property
    def notebook(self) -> Notebook:
        """How the book is kept."""
        return Notebook(self.domains, self.half_life, Recogniser(self.hazard, self.tolerance, self.strange))

    @property
    def descends(self) -> bool:
        """Only the inner method takes steps."""
        return self.learner is not None

    @property
    def source_images(self) -> int:
        """As many as the inner method asks for."""
        return METHODS[self.inner].source_images if self.inner != "none" else 0

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return what the inner method learns from images of the source."""
        return {} if self.learner is None else self.learner.study(network, images, batch)

    def check(self, network: Network, batch: int) -> None:
        """Without an inner method there must be statistics to recall; with one, what it trains."""
        if network.dense and self.mirror != type(self).mirror:
            raise UserError(f"recall.mirror={self.mirror} has no effect on a model that predicts every pixel: drop it")
        if self.learner is None:
            return self.require(network, "batchnorm", "recall.inner=tent")
        for need in self.learner.method.needs:
            self.require(network, need)

    def init(self, network: Network) -> Client:
        """Own nothing of the model; begin with an empty book."""
        learner = self.learner.start(network) if self.learner else {}
        book = self.notebook.start(self._layout(network).width, network.device)
        weights = torch.full((self.domains + 1,), self.start, device=network.device)
        return Client({}, book | {"weights": weights} | learner)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Recognise, predict, add."""
        return self.adapt_and_predict(network, client, x)[0]

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Recognise, predict, add: one pass."""
        layout, scale, images = self._layout(network), read_scale(network), len(x)
        looks = appearance(x)
        private, page = self.notebook.recognise(layout, client.private, looks)
        begun = private["name"] != client.private["name"]
        private["weights"] = torch.where(F.pad(begun, (0, 1)), private["weights"][-1], private["weights"])
        if self.learner:  # what was learnt in a domain that is replaced is read before a batch is added
            private["part"] = torch.where(begun[:, None], 0, private["part"])
        rule = normalise_with(scale, self._blend(layout, private, page, private["weights"], images))
        output = network(self._own(network, layout, private), x, rule)
        measured = images * self._measures(private)
        sums = {"images": constant((float(images),), looks), "look": looks.sum(0), "square": looks.square().sum(0)}
        if not is_lone(measured) or bool(measured > 0):
            sums |= {"measured": measured, "moments": measured * encode_statistics(scale, output.statistics)}
        if self.learner:
            sums["trained"] = sums["images"]
        after = self.notebook.add(private, layout.row(looks, **sums), page.part)
        if self.learner:
            learnt, belief = read_learnt(layout, private), private["belief"][:-1]
            step, after = self.learner.step(network, belief @ learnt, after, x, rule)
            after = note_step(layout, after, learnt, belief * (belief > HEED), step)
        return Client({}, after), output.logits

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Recognise and predict; nothing is added."""
        return self.adapt_and_predict(network, client, x)[1]

    @property
    def receives(self) -> bool:
        """The device's own domains take their places in the book that it receives."""
        return True

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take up a book, and average what was learnt with what others have learnt in the same domains."""
        layout, private = self._layout(network), self.notebook.receive(client.private)
        private = self._choose(layout, private)
        return client._replace(private=average(layout, private) if self.learner else private)

    def go_back(self, healthy: Client, now: Client) -> Client:
        """Go back to an earlier book, but not in time: names and versions that others have seen are not used again."""
        return healthy._replace(private=healthy.private | {"time": now.private["time"]})

    def with_noise(self, noise: float, min_images: int = 1) -> Adapter:
        """Share noisy sums only."""
        from fedctta.adapters.common.private_recall import add_noise

        return add_noise(self, noise, min_images)

    def predicts_alike(self, communicates: bool) -> bool:
        """A batch is predicted while it is adapted to."""
        return True

    def is_due(self, client: Client) -> Tensor:
        """Whether too few images of the batch's domain have been scored or measured."""
        compare, measure = self._lacks(client.private)
        return compare | measure

    def without_reviews(self) -> Recall:
        """Return the method in a domain of which enough images have been scored, with the largest weight."""
        return replace(self, review_rate=0.0, soon=0.0, survey=0.0, start=self.largest)

    def _lacks(self, private: Tensors) -> tuple[Tensor, Tensor]:
        """Return whether too few images of the batch's domain have been scored, and whether too few were measured."""
        layout = Layout(0)
        if can_fuse_book(private["part"]):
            places = (layout.parts[name].start for name in ("images", "scored", "measured"))
            numbers = (self.review_rate, self.soon, self.survey, self.enough)
            return lack_fused(private, Wants(-1 / self.half_life, NEARLY * self.largest, *numbers, GAP, *places))
        here = private["belief"][:-1].argmax(0, keepdim=True)
        page = self.notebook.page(layout, private, here)
        images, scored, measured = (layout.of(page.short, name).squeeze(0) for name in ("images", "scored", "measured"))
        rare = private["weights"].index_select(0, here).squeeze(0) <= NEARLY * self.largest
        turn = (private["batches"] % GAP == 0) | (scored == 0)
        compare = turn & (scored < self.review_rate * (1 + images / 32).log2())
        wanted = torch.maximum((self.survey * images).clamp_max(self.enough), images.clamp_max(self.soon))
        return compare, rare & (measured < wanted)

    def review(self, network: Network, client: Client, x: Tensor) -> Client:
        """Compare three weights on the batch and its mirror images; measure it, if its prediction did not.

        Two domains that turn out to be one are united.

        What is compared early rests on poor statistics, and on few other domains to tell usual classes by. A score
        counts w = (0.1 + 0.9 t) m / (m + poor), with m images measured and t as in `books.weights`.
        """
        if not network.norms:  # no statistics to weigh
            return client
        layout, scale, private, images = self._layout(network), read_scale(network), client.private, len(x)
        page = self.notebook.page(layout, private)
        anew = images * (1 - self._measures(private))
        whole = self._blend(layout, private, page, torch.full_like(private["belief"], self.largest), anew)
        learnt = self._own(network, layout, private)

        compares, _ = self._lacks(private)
        twice = self.mirror > 0 and x.dim() == PICTURES and not network.dense and may_hold(compares)

        def score(share: Tensor) -> tuple[Tensor, Tensor]:
            rule = normalise_with(scale, Blend(share * whole.known, share * whole.batch))
            output = network(learnt, x, rule)
            plain = output.logits.softmax(-1)
            both = (plain + network(learnt, mirror(x), rule).logits.softmax(-1)) / 2 if twice else plain
            return torch.stack([plain, both]), encode_statistics(scale, output.statistics)

        weights = WEIGHTS if may_hold(compares) else WEIGHTS[-1:]
        predictions, moments = at_once(network, score)(constant(weights, x))
        plain, both = predictions.unbind(1)
        sums = {"measured": anew, "moments": anew * moments[-1]}
        if may_hold(compares):
            own, belief = private["part"], private["belief"][:-1]
            usual, trust = find_usual(layout.of(own, "classes"), belief, plain.shape[-1])
            shares = compares * count_shares(plain)
            so_far = shares + (belief @ layout.of(own, "shares")).view_as(shares)
            known = belief @ layout.of(page.short, "measured") + anew
            scored = images * compares * (LEAST + (1 - LEAST) * trust) * known / (known + self.poor)
            sums |= {
                "scored": scored,
                "doubt": scored * torch.lerp(doubt(plain), doubt(both), self.mirror),
                "unusual": scored * trust * compare_classes(usual, so_far),
                "classes": compares * count_classes(plain[0]),
                "shares": shares,
            }
        private = self.notebook.unite(layout, self.notebook.add(private, layout.row(x, **sums), page.part))
        return client._replace(private=self._choose(layout, private))

    def _layout(self, network: Network) -> Layout:
        layout = read_scale(network).layout
        if self.learner is None:
            return layout
        return Layout(layout.channels, sum(t.numel() for t in self.learner.weights(network).values()))

    def _own(self, network: Network, layout: Layout, private: Tensors) -> Tensors:
        """Return the scales and shifts of the batch's domains; none without an inner method."""
        if self.learner is None:
            return {}
        return self.learner.apply(network, private["belief"][:-1] @ read_learnt(layout, private))

    def _choose(self, layout: Layout, private: Tensors) -> Tensors:
        """Return the private tensors with the weights a[K + 1] of all domains, the unknown one last, chosen anew."""
        short, classes = self.notebook.page(layout, private).short, layout.of(private["part"], "classes")
        return private | {"weights": Chooser(self.start, self.tie, self.largest).choose(layout, short, classes)}

    def _measures(self, private: Tensors) -> Tensor:
        """Return 1 if a batch is normalised with the largest weight, else 0."""
        return (private["belief"] @ private["weights"] > NEARLY * self.largest).to(private["weights"].dtype)

    def _blend(self, layout: Layout, private: Tensors, page: Page, weights: Tensor, images: int | Tensor) -> Blend:
        """Return what to normalise a batch of `images` with, of which the book has no moments."""
        measured, moments = layout.of(page.short, "measured"), layout.parts["moments"]
        if can_fuse_book(private["part"]):
            worth = images if isinstance(images, Tensor) else constant(float(images), measured)
            left = page.part, page.book
            return Blend(*blend_fused(private, weights, left, measured, worth, self.prior, moments))
        c = private["belief"][:-1] * weights[:-1] / (measured + images + self.prior)
        known = (c * page.part) @ private["part"][:, moments]
        if not is_lone(page.book) or bool(page.book.any()):
            known = known + (c * page.book) @ private["book"][:, moments]
        unknown = private["belief"][-1] * weights[-1] / (images + self.prior)
        return Blend(known, images * (c.sum() + unknown))


def doubt(probabilities: Tensor) -> Tensor:
    """Return the mean entropy[A] of predictions[A, B, C]."""
    mean: Tensor = torch.special.entr(probabilities).sum(-1).mean(-1)
    return mean
