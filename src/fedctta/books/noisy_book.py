"""What a device says of its domains where one image must not show: bounded contributions, Gaussian noise, a budget.

A device that shares with noise keeps two books. One is exact, is used for its own predictions and never leaves it. The
other, this one, is made of noisy sums only, and all that the device ever sends is computed from it.

**What an image contributes.** Two vectors, which depend on its own pixels and on public numbers, and on no other image:

    a_i = cut((f_i - centre) / usual, A)       its look (`core.appearance`), in usual deviations
    v_i = cut((z, e)_i, C),  C = R sqrt(d)     its moments (`measure`): d numbers

cut(v, r) = v min(1, r / |v|). `usual` is a constant, `centre` follows the noisy looks.

**What is released.** The stream is cut into windows of at least w images, by position. At the end of a window

    look = sum_i a_i + N(0, (2 A s_1)^2)       in each of the twelve numbers

is released. Which of the book's domains the window is of, with beliefs b(k), sum_k b(k) <= 1, whether it begins a new
one and which domains are united follows from noisy looks and from what the server sent. Then b(k) sum_i v_i waits in
domain k; waiting sums are only moved, added to each other, or multiplied by numbers up to 1 that follow from the same.
Once at least `min_images` images wait in a domain (their number follows from window sizes and beliefs),

    moments = waiting sum + N(0, (2 C s_2)^2)  in each of the d numbers

is released, and nothing waits there any more.

**What is guaranteed.** Let two streams differ in one image, and let all releases so far be the same. Then all beliefs,
moves and factors are the same, so the mean of the next release differs by (a - a') once, or by c_r (v - v'), where
c_r >= 0 is the share of the image in release r. What waits is released once, so sum_r c_r <= 1. In units of the noise,
the squared differences of all releases add up to at most

    (|a - a'| / 2 A s_1)^2 + sum_r (c_r |v - v'| / 2 C s_2)^2 <= 1 / s_1^2 + 1 / s_2^2 = 1 / noise^2 = m^2,

whatever was released. Given the past, the log-likelihood ratio of release r is N(m_r^2 / 2, m_r^2), where m_r is known
before r. Continue with releases of pure noise about a difference that is public, until sum_r m_r^2 = m^2 exactly. Then
E exp(t L) = exp(t m^2 / 2 + t^2 m^2 / 2) for all t by taking expectations from the last release backwards, so the whole
ratio L is N(m^2 / 2, m^2), as for one Gaussian release with the ratio m, and leaving releases out reveals no more. So
**all that a device ever sends is (epsilon, delta)-private for one image replaced by any other**, with delta(epsilon, m)
as in `uploads.privacy`, also if the server lies about what it sends. s_1 = noise / sqrt(share), s_2 = noise / sqrt(1 -
share).

An image that is shown T times, or T pictures of one scene, are T images. Not covered: how long a device computes;
rounding (numbers are float32, and their last bits are not what real numbers would give); images that the device leaves
out because their numbers are not finite.

**What it is worth.** A noisy sum counts as many images as an exact one with the same error. So every rule of the book,
for which fewer images mean less, holds as it is:

    a window     1 / (1/w + (2 A s_1 / w)^2)
    a release    1 / (1/n + d (2 s_2 / n)^2)       if all images' moments are as long as C

Moments of images that are each normalised by themselves are not quite those of a batch. This error does not shrink with
the number of images, so whoever receives a book counts no more than `WORTH` images of a domain (`match`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.books.notebook import Notebook
from fedctta.books.recognition import Looks, Recogniser
from fedctta.books.rows import Layout, Scale
from fedctta.core.appearance import NUMBERS
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import Statistics
from fedctta.core.randomness import fork, normal, numbered
from fedctta.core.tensors import choose, may_hold, named, under

USUAL = (1.5, 0.6, 0.3, 0.6, 0.35, 0.15, 0.2, 0.15, 0.1, 0.9, 0.12, 0.5)  # deviations of looks within a domain
CENTRE = (-17.0, 3.7, 0.4, 3.5, 1.3, 0.2, 0.25, 0.15, 0.05, -7.3, 0.5, -2.5)  # of looks, before any was seen
SLOW = 10  # windows that this first centre is worth
WIDER = 34  # images in a window, over the noise
PIXELS = 128  # with fewer, the statistics of a single image say little of its domain
FEW = 20.0  # images that noisy looks of a domain are worth to a device that has seen some itself
WORTH = (
    40.0  # images that moments of images, each normalised by itself, are worth, however many they are and without noise
)
TINY = 1e-6
MOST = (5.0, 25.0)  # of z and e that are sent
NOISE, NAMES = 0x9015E, 0x4A3E  # keep these kinds of chance apart
LOOKS = 1 + 2 * NUMBERS  # numbers at the beginning of a row that tell of looks
HANDED = ("heading", "place", "asked")
HELD = ("part", "changed", "name", "book", "held", "received", "belief")
PREFIX = "shared"


class Measured(NamedTuple):
    """Moments[B, 2 D] of every image by itself, and which[2 D] of them are measured; others are zero."""

    moments: Tensor
    which: Tensor


def measure(network: Network, scale: Scale, x: Tensor) -> Measured:
    """Return z and e (`rows`) of every image of x[B, ...], in a pass that normalises each with its own statistics.

    Nothing but the image and the source model enters, and there is no order in which layers must be known first. Where
    an image has fewer than `PIXELS` pixels, its own statistics are too poor: the source's are used, and zeros returned.
    Moments that are zero are the source's, so whoever uses such rows normalises these layers as the source does.
    """
    large: dict[str, bool] = {}

    def rule(name: str, y: Tensor, source: Statistics) -> tuple[Statistics, Statistics]:
        large[name] = large.get(name, True) and y[0, 0].numel() >= PIXELS
        if not large[name]:
            every = Statistics(*(t.expand(len(y), -1) for t in source))
            return source, every
        pixels = y.flatten(2).float()
        mean = pixels.mean(2)
        own = Statistics(mean, (pixels - mean.unsqueeze(2)).square().mean(2))
        return own, own

    found = network({}, x, rule).statistics
    prefixes = [f"{name}." if name else "" for name in scale.names]
    mean, var = (torch.cat([found[f"{p}{kind}"] for p in prefixes], 1) for kind in ("running_mean", "running_var"))
    which = torch.cat(
        [mean.new_full((width,), large.get(name, False)) for name, width in zip(scale.names, scale.widths, strict=True)]
    )
    which = torch.cat([which, which])
    return Measured(scale.encode(mean, var) * which, which)


def cut(vectors: Tensor, length: float | Tensor) -> Tensor:
    """Return vectors[B, d], none longer than `length`, whatever numbers they hold."""
    finite = torch.nan_to_num(vectors, 0.0, 1e6, -1e6).clamp(-1e6, 1e6)
    shorter: Tensor = finite * (length / finite.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
    return shorter


@dataclass(frozen=True)
class NoisyBook:
    """How a device shares: noise over sensitivity of all that is said of one image, and images per released sum.

    `share` of 1 / noise^2 goes to looks.
    """

    notebook: Notebook
    noise: float
    min_images: int = 500
    least_window: int = 50
    share: float = 0.5
    look_length: float = 6.0  # A
    strange: float = 1.35  # of a domain not met: the variance of its looks, in usual ones, without noise
    radius: float = 0.35  # R

    @property
    def window(self) -> int:
        """Images in a window: more where noise is large, so that a window says more than one image."""
        return max(self.least_window, round(WIDER * self.noise))

    @property
    def look_noise(self) -> float:
        """The deviation of the noise on the sum of looks of a window, in usual deviations."""
        return 2 * self.look_length * self.noise / sqrt(self.share)

    @property
    def worth(self) -> float:
        """As many exact looks say as much as a window."""
        return 1 / (1 / self.window + (self.look_noise / self.window) ** 2)

    @property
    def recogniser(self) -> Recogniser:
        """How a window is recognised: there are fewer windows than batches, and a look that is not met is noisy too."""
        batches = self.notebook.recogniser
        hazard = min(0.5, 1 - (1 - batches.hazard) ** (self.window / 10))
        return replace(batches, hazard=hazard, strange=self.strange + 1 / self.worth)

    def moments_noise(self, length: Tensor) -> Tensor:
        """The deviation of the noise on a sum of moments, none longer than `length`."""
        return 2 * length * (self.noise / sqrt(1 - self.share))

    def start(self, layout: Layout, device: torch.device) -> Tensors:
        """Return an empty book. Behind its rows stand the sums that wait, and of how many images they are."""
        wide = Layout(layout.channels, 1 + 2 * layout.channels)
        book = self.notebook.start(layout.width, device)
        book["part"] = book["part"].new_zeros(self.notebook.domains, wide.width)
        zero = torch.zeros((), device=device)
        return named(
            PREFIX,
            {name: book[name] for name in HELD}
            | {
                "centre": torch.tensor(CENTRE, device=device),
                "windows": zero,
                "images": zero.clone(),
                "look": zero.expand(NUMBERS).clone(),
                "moments": zero.expand(2 * layout.channels).clone(),
                "fresh": zero.expand(NUMBERS + 2 * layout.channels).clone(),  # chance from outside
                "given": zero.clone(),  # 1: use it
            },
        )

    def add(self, layout: Layout, private: Tensors, looks: Tensor, measured: Measured) -> Tensors:
        """Return the private tensors after a batch: its images join the window, and if this is full, it is released."""
        mine = under(PREFIX, private)
        usual = torch.tensor(USUAL, device=looks.device)
        length = self.radius * measured.which.sum().sqrt()
        mine |= {
            "images": mine["images"] + len(looks),
            "look": mine["look"] + cut((looks - mine["centre"]) / usual, self.look_length).sum(0),
            "moments": mine["moments"] + cut(measured.moments, length).sum(0),
        }
        full = mine["images"] >= self.window
        if may_hold(full):
            after = self._release(layout, mine, self._read(mine, private), measured.which, self._draw(mine, private))
            mine = choose(full, after, {name: mine[name] for name in after})
        return private | named(PREFIX, mine)

    def _read(self, mine: Tensors, private: Tensors) -> Tensors:
        """Return what the notebook works on: this book, at the device's time."""
        return {
            **{name: mine[name] for name in HELD},
            **{name: private[name] for name in HANDED},
            "time": private["time"],
            "key": fork(private["key"], NAMES),
            "usual": torch.tensor(USUAL, device=private["time"].device).square(),
        }

    def _draw(self, mine: Tensors, private: Tensors) -> Tensor:
        """Return standard normal numbers: from outside, or else, in a simulation, from the client's key."""
        key = numbered(fork(private["key"], NOISE), private["time"])
        return torch.where(mine["given"] > 0, mine["fresh"], normal(key, mine["fresh"].shape))

    def _release(self, layout: Layout, mine: Tensors, book: Tensors, which: Tensor, chance: Tensor) -> Tensors:
        """Release the looks of a window, add it to its domains, and release what waits in one of them, if it is due."""
        wide, usual, images = Layout(layout.channels, 1 + 2 * layout.channels), book["usual"], mine["images"]
        noisy = (mine["look"] + self.look_noise * chance[:NUMBERS]) / images
        look = mine["centre"] + usual.sqrt() * noisy
        page = self.notebook.page(layout, book)
        known = Looks.read(layout, page.short)
        book["belief"] = self.recogniser.update(book["belief"], look, self.worth, known, usual)
        book, page = self.notebook.begin(book, page, known.images, book["belief"][-1] > 0.5)
        worth = look.new_full((1,), self.worth)
        row = wide.row(
            look,
            images=worth,
            look=worth * look,
            square=worth * (look.square() + usual),
            learnt=torch.cat([images[None], mine["moments"]]),
        )
        book = self.notebook.unite(layout, self.notebook.add(book, row, page.part))
        book["part"] = self._release_moments(wide, book["part"], which, chance[NUMBERS:])
        zero = torch.zeros_like(images)
        return {name: book[name] for name in HELD} | {
            "centre": torch.lerp(mine["centre"], look, 1 / (mine["windows"] + SLOW)),
            "windows": mine["windows"] + 1,
            "images": zero,
            "look": torch.zeros_like(mine["look"]),
            "moments": torch.zeros_like(mine["moments"]),
        }

    def _release_moments(self, wide: Layout, part: Tensor, which: Tensor, chance: Tensor) -> Tensor:
        """Return the rows after the domain with most waiting images has released their sum, if there are enough."""
        waits = wide.of(part, "learnt")
        images = waits[:, 0]
        due = (torch.arange(len(part), device=part.device) == images.argmax()) & (images >= self.min_images)
        count = images.amax().clamp_min(1)
        numbers = which.sum()
        deviation = self.moments_noise(self.radius * numbers.sqrt())
        total = torch.where(due[:, None], waits[:, 1:], 0).sum(0) + deviation * chance * which
        ratio = 2 * self.noise / sqrt(1 - self.share)
        worth = (numbers > 0) / (1 / count + numbers * (ratio / count).square())
        row = wide.row(total, measured=worth[None], moments=worth * total / count)
        part = part + due[:, None] * row
        return torch.cat([part[:, : wide.parts["learnt"].start], torch.where(due[:, None], 0, waits)], 1)

    def receive(self, private: Tensors) -> Tensors:
        """Return the private tensors after this book has taken up what the server sent."""
        mine = under(PREFIX, private)
        book = self._read(mine, private) | {"book": private["book"], "received": private["received"]}
        return private | named(PREFIX, {name: t for name, t in self.notebook.receive(book).items() if name in HELD})


def tell(layout: Layout, private: Tensors) -> Tensors:
    """Return what is sent: domains of which moments were released, in numbers that can be true."""
    mine = under(PREFIX, private)
    rows = mine["part"][:, : layout.width]
    known = layout.of(rows, "measured") > 0
    count = layout.of(rows, "measured").minimum(layout.of(rows, "images"))
    z, e = (layout.of(rows, "moments") / layout.of(rows, "measured").clamp_min(TINY)[:, None]).chunk(2, 1)
    z = z.clamp(-MOST[0], MOST[0])
    e = e.clamp_max(MOST[1]).maximum(z.square() - 1)
    columns = [rows[:, : layout.parts["measured"].start], count[:, None], torch.zeros_like(count)[:, None]]
    sent = torch.cat([*columns, count[:, None] * torch.cat([z, e], 1)], 1)
    return {
        "part": torch.where(known[:, None], sent, 0),
        "name": torch.where(known, mine["name"], 0),
        "changed": mine["changed"],
        "time": private["time"],
        "belief": mine["belief"],
    }


def is_noisy(private: Tensors) -> bool:
    """Whether a device shares with noise."""
    return f"{PREFIX}.part" in private


def match(notebook: Notebook, layout: Layout, private: Tensors) -> Tensors:
    """Return the private tensors with places, by looks, of the device's exact domains in the book that it received.

    Their names were never sent, so the server cannot know them. A noisy look must not unite exact domains: at most one
    takes a place, the one that had it, or else that which is most likely the same. What others say counts no more than
    `FEW` images of looks and `WORTH` of moments.
    """
    own, theirs = (Looks.read(layout, private[rows]) for rows in ("part", "book"))
    had = (private["name"][:, None] == private["heading"]) & (private["name"] != 0)[:, None]
    odds = notebook.recogniser.same(own, theirs, private["usual"])
    odds = torch.where(had.any(0) | (odds < odds.amax(0)), -torch.inf, odds)
    place = torch.where(odds.amax(1) > 0, odds.argmax(1), -1)
    looks, moments = private["book"][:, :LOOKS], private["book"][:, LOOKS:]
    few = (FEW / theirs.images.clamp_min(TINY)).clamp_max(1)[:, None]
    worth = (WORTH / layout.of(private["book"], "measured").clamp_min(TINY)).clamp_max(1)[:, None]
    return private | {"asked": private["name"], "place": place, "book": torch.cat([few * looks, worth * moments], 1)}
