"""Which client sees which domain and which images, and when. One schedule per file.

A schedule says which domain every client meets in every slot; `build` adds which images, and gives a `Stream` that is
read one slot at a time. Labels and domains leave a stream for the metrics only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.data.domains import UNLABELLED, Domains
from fedctta.data.mask_layouts import IGNORE
from fedctta.data.masked import AnyDomains, MaskedDomains, evened
from fedctta.errors import UserError
from fedctta.keys import Order
from fedctta.registry import Registry, check_ranges
from fedctta.sampling import Sampler, in_bursts
from fedctta.sampling.plain import Disjoint
from fedctta.streams.dealing import ABSENT as ABSENT
from fedctta.streams.dealing import deal_domains, describe, shorten

PICTURE = 192


class Slot(NamedTuple):
    """One time step: images[A, B, ...] as stored and labels[A, B] of the A active clients, domain[N] (-1: absent).

    Images that are not counted have the label `UNLABELLED`. Dense data have labels[A, B H W], one per pixel, and 255
    for pixels that are not counted.
    """

    images: NDArray[Any]
    labels: NDArray[Any]
    domain: NDArray[np.int32]


class Schedule:
    """Which domain every client meets in every slot."""

    name: ClassVar[str]
    clean: bool = False  # True: clean images are one more domain
    repeats: ClassVar[bool] = False  # True: a client's images are shown in turn, however long a domain lasts

    def __post_init__(self) -> None:
        """Refuse parameters outside the ranges that their types tell."""
        check_ranges(self)

    def set_up(self, batch: int, seed: int) -> Schedule:
        """Return the schedule for batches of this size and this seed; most depend on neither."""
        return self

    def fit(self, clients: int, domains: int) -> Schedule:
        """Return the schedule for so many clients and domains, where its defaults are for more."""
        return self

    def default_clients(self) -> int:
        """Return how many clients there are unless the user says otherwise."""
        return 20

    def plan(self, clients: int, domains: tuple[str, ...], slots: int) -> NDArray[np.int32]:
        """Return domain[T, N] (indices into `domains`, -1: absent); every domain lasts `slots` slots per client."""
        raise TypeError(f"{type(self).__name__} must define plan")


@dataclass(frozen=True)
class Stream:
    """A schedule with its images: `domain[T, N]`, and `samples` with the k-th batch of a client in a domain.

    `samples` are [N, S, B], the same in any domain, or, where domains have images of their own, [D, N, S, B].
    """

    data: AnyDomains
    domain: NDArray[np.int32]
    samples: NDArray[np.int64]
    visit: NDArray[np.int32]  # [T, N]: how often the client has met this domain before
    delay: NDArray[np.int64] | None = None  # [T, N]: by how many rounds an upload is late; None: none ever is
    counted: NDArray[np.bool_] | None = None  # like samples: False for images that count for nothing; None: all count
    notes: tuple[str, ...] = ()  # what of the data is not shown, or shown again

    def __len__(self) -> int:
        return len(self.domain)

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return int(self.domain.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels of an image."""
        return next(iter(self.data.images.values())).shape[1:]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of what the model reads of an image: channels first if it is a picture, else as stored."""
        return (self.shape[-1], *self.shape[:-1]) if self.data.pictures else self.shape

    @property
    def batch(self) -> int:
        """Images per client and slot B."""
        return int(self.samples.shape[-1])

    @property
    def all_labelled(self) -> bool:
        """Whether every image that is shown has a label and counts."""
        data = self.data
        return self.counted is None and not (
            isinstance(data, Domains) and not all(data.labelled(name) for name in data.names)
        )

    def place(self, domain: NDArray[Any], client: NDArray[Any], visit: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Return the index into `samples` and `counted` of clients' batches at their visits to domains."""
        return (client, visit) if self.samples.ndim == 3 else (domain, client, visit)

    def truth(self, domain: NDArray[Any], client: NDArray[Any], visit: NDArray[Any]) -> NDArray[Any]:
        """Return the labels[A, B] of clients' batches (of dense data, their masks); for metrics only."""
        place = self.place(domain, client, visit)
        samples = self.samples[place]
        like = self.data.labels_of(self.data.names[0])
        labels = np.empty((*samples.shape, *like.shape[1:]), like.dtype)
        for k in np.unique(domain):
            labels[domain == k] = self.data.labels_of(self.data.names[k])[samples[domain == k]]
        if self.counted is None:
            return labels
        counts = self.counted[place].reshape(*samples.shape, *[1] * (labels.ndim - samples.ndim))
        return np.where(counts, labels, IGNORE if self.data.dense else UNLABELLED)

    def without(self, clients: Sequence[int]) -> Stream:
        """Return the stream in which what these clients are shown counts for nothing."""
        counted = np.ones(self.samples.shape, bool) if self.counted is None else self.counted.copy()
        counted[..., list(clients), :, :] = False
        return replace(self, counted=counted)

    def slot(self, t: int) -> Slot:
        """Read one slot."""
        active = np.flatnonzero(self.domain[t] != ABSENT)
        domain, visit = self.domain[t, active], self.visit[t, active]
        samples = self.samples[self.place(domain, active, visit)]
        images = np.empty((*samples.shape, *self.shape), self.data.images[self.data.names[0]].dtype)
        for k in np.unique(domain):
            images[domain == k] = self.data.images[self.data.names[k]][samples[domain == k]]
        labels = self.truth(domain, active, visit)
        return Slot(images, labels.reshape(len(active), np.prod(labels.shape[1:], dtype=int)), self.domain[t])

    def joined(self, t: int) -> NDArray[np.bool_]:
        """Return which clients are present in slot t but not in the slot before; none in the first slot."""
        came: NDArray[np.bool_] = (self.domain[t] != ABSENT) & (self.domain[max(t - 1, 0)] == ABSENT)
        return came

    def class_counts(self) -> NDArray[Any]:
        """Return how many images of every class every client sees in every domain, [D, N, K]; for metrics only.

        Of dense data these are pixels, those that count for nothing left out.
        """
        if isinstance(self.data, MaskedDomains):
            return self._pixel_counts(self.data)
        counts = np.zeros((len(self.data.names), self.clients, len(self.data.classes)), np.int32)
        for domain, visit in zip(self.domain, self.visit, strict=True):
            client = np.flatnonzero(domain != ABSENT)
            labels = self.truth(domain[client], client, visit[client])
            known = labels != UNLABELLED
            where = np.broadcast_arrays(domain[client][:, None], client[:, None], labels)
            np.add.at(counts, tuple(each[known] for each in where), 1)
        return counts

    def _pixel_counts(self, data: MaskedDomains) -> NDArray[np.int64]:
        counts = np.zeros((len(data.names), self.clients, len(data.classes)), np.int64)
        for k, name in enumerate(data.names):
            by_image = np.stack([np.bincount(mask.ravel(), minlength=256) for mask in data.labels[name]])
            slot, client = np.nonzero(self.domain == k)
            place = client, self.visit[slot, client]
            met = by_image[self.samples[place], : len(data.classes)]
            if self.counted is not None:
                met *= self.counted[place][..., None]
            np.add.at(counts[k], client, met.sum(1))
        return counts

    def farewells(self) -> list[tuple[int, int, int]]:
        """Return (domain, slot, client) of the last slot in which every domain is met, and the first client there."""
        found = []
        for k in range(len(self.data.names)):
            met = np.argwhere(self.domain == k)
            if len(met):
                t = int(met[-1, 0])
                found.append((k, t, int(met[met[:, 0] == t][0, 1])))
        return found

    def pictures(self, predicted: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return, of dense data, the first image of every domain's last batch: [D, H, W, 5].

        The channels are red, green, blue, the true class and the `predicted` one, [D, H, W]. Large images are thinned
        out to a side of at most `PICTURE`.
        """
        found = np.zeros((*predicted.shape, 5), np.uint8)
        for k, t, client in self.farewells():
            first, name = self.samples[client, self.visit[t, client], 0], self.data.names[k]
            truth = self.data.labels_of(name)[first]
            found[k] = np.dstack([self.data.images[name][first], truth, predicted[k]])
        step = -(-max(predicted.shape[1:]) // PICTURE)
        return found[:, ::step, ::step]

    @property
    def spatial_heterogeneity(self) -> float:
        """SH: distinct domains among the clients present, over their number; mean over slots (FedCTTA Eq. 8)."""
        present = [row[row != ABSENT] for row in self.domain]
        return float(np.mean([len(np.unique(row)) / len(row) for row in present if len(row)]))

    @property
    def temporal_heterogeneity(self) -> float:
        """TH: one over the number of consecutive slots with the same domain; 1 when every slot differs."""
        changes = (self.domain[1:] != self.domain[:-1]).sum(0) + 1
        return float(np.mean(changes / len(self.domain)))


def build(
    schedule: Schedule,
    data: AnyDomains,
    clients: int,
    slots: int,
    batch: int,
    seed: int,
    sampler: Sampler | None = None,
    order: Order = "shuffled",
    stragglers: float = 0.0,
    delay: int = 3,
    everything: bool = False,
) -> Stream:
    """Lay out a schedule over a data set.

    The sampler (by default `disjoint`) deals images to clients; a client sees the same images in the same order in
    every domain, as in the papers. With `order="bursts"` its classes arrive one after another. A share `stragglers` of
    all uploads comes late, by 1 to `delay` rounds. Domains with images of their own are dealt one by one and last as
    long as they have images, `slots` at most (see `streams.dealing`). With `everything`, domains that hold the same
    images do so, too; without it, what does not fill a batch of every client is not shown, as in the papers. Dense data
    whose domains differ in size are made even (see `data.masked.evened`).
    """
    sampler = sampler or Disjoint()
    if isinstance(data, MaskedDomains):
        if sampler.by_class or order == "bursts":
            asked, remedy = f"order={order}", "order=shuffled"
            if sampler.by_class:
                asked, remedy = f"samples={sampler.name}", "samples=disjoint"
            raise UserError(f"{asked} needs one class an image, and these have one a pixel: use {remedy}")
        data = evened(data, seed)
    for key, value in (("clients", clients), ("slots", slots), ("batch", batch)):
        if value < 1:
            raise UserError(f"{key}={value} must be at least 1")
    domain = schedule.set_up(batch, seed).plan(clients, data.names, slots).astype(np.int32)
    if not (domain != ABSENT).any():
        raise UserError(f"stream {schedule.name} shows no client any domain: give at least one client one visit")
    visit = _turns(domain, slots) if schedule.repeats else _visits(domain, len(data.names))
    rng = np.random.default_rng((seed, 17))
    late = partial(late_uploads, share=stragglers, most=delay, seed=seed)
    if isinstance(data, Domains) and (everything or not data.shared):
        dealt = deal_domains(data, sampler, clients, int(visit.max()) + 1, batch, order, rng)
        if schedule.repeats:
            visit = _visits(domain, len(data.names)) % np.maximum(dealt.lasts, 1)[domain]
        else:
            domain = shorten(domain, visit, dealt.lasts)
            visit = _visits(domain, len(data.names))
        notes = describe(data.names, data.sizes, dealt, domain, visit)
        samples, counted = (dealt.samples[0], dealt.counted[0]) if data.shared else (dealt.samples, dealt.counted)
        return Stream(data, domain, samples, visit, late(domain.shape), None if counted.all() else counted, notes)
    need = int(visit.max() + 1) * batch
    labels = np.zeros(data.count, np.int64) if isinstance(data, MaskedDomains) else data.labels_of(data.names[0])
    chosen = sampler.deal(labels, clients, need, rng)
    if order == "bursts":
        chosen = in_bursts(chosen, labels, rng)
    unseen = int((np.bincount(chosen.ravel(), minlength=data.count) == 0).sum())
    notes = (f"images not shown: {unseen:,} of the {data.count:,} of every domain",) if unseen else ()
    samples = chosen.reshape(clients, -1, batch).astype(np.int64)
    return Stream(data, domain, samples, visit, late(domain.shape), notes=notes)


def late_uploads(shape: tuple[int, ...], share: float, most: int, seed: int) -> NDArray[np.int64] | None:
    """Draw by how many rounds the upload of every slot and client is late: a `share` of them by 1 to `most`."""
    rng = np.random.default_rng((seed, 31))
    late = rng.random(shape) < share
    return np.where(late, rng.integers(1, most + 1, shape), 0) if share else None


def _visits(domain: NDArray[np.int32], domains: int) -> NDArray[np.int32]:
    """visit[t, i]: number of earlier slots in which client i met the domain of slot t."""
    visit = np.zeros_like(domain)
    for k in range(domains):
        here = domain == k
        visit[here] = (here.cumsum(0, dtype=np.int32) - 1)[here]
    return visit


def _turns(domain: NDArray[np.int32], slots: int) -> NDArray[np.int32]:
    """visit[t, i] = t mod slots: a client's batches in turn, whatever the domain."""
    return np.broadcast_to((np.arange(len(domain), dtype=np.int32) % slots)[:, None], domain.shape).copy()


schedules: Registry[Schedule] = Registry("stream", __name__)
