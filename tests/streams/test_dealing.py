"""Domains with images of their own: each is dealt as it is, and what is repeated or left out is said."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.data.domains import UNLABELLED, Domains
from fedctta.errors import UserError
from fedctta.sampling.plain import Disjoint, Overlap
from fedctta.sampling.skewed import Dirichlet, LongTail
from fedctta.streams import ABSENT, Schedule, build
from fedctta.streams.clusters import IID, NIID
from fedctta.streams.dealing import slots_of_all

CLASSES = 3


@dataclass(frozen=True)
class Fixed(Schedule):
    """A plan given by the test."""

    name: ClassVar[str] = "fixed"
    table: Any = ()

    def plan(self, clients, domains, slots):
        return np.asarray(self.table)


def domains(sizes, labelled=True):
    """Make domains in which the value of every image is its number, of as many images as given."""
    names = tuple(f"d{k}" for k in range(len(sizes)))
    images = {n: np.arange(size, dtype=np.float32)[:, None] for n, size in zip(names, sizes, strict=True)}
    labels = {n: np.arange(size) * 7 % CLASSES for n, size in zip(names, sizes, strict=True)}
    return Domains(names, images, labels if labelled else None, ("x", "y", "z"))


def shown(stream):
    """Return (all images shown, those that count) of every domain, as counts by image and, of the latter, by label."""
    everything, counting, truth = {}, {}, {}
    for t in range(len(stream)):
        slot = stream.slot(t)
        for row, client in enumerate(np.flatnonzero(slot.domain != ABSENT)):
            k = int(slot.domain[client])
            for image, label in zip(slot.images[row, :, 0].astype(int), slot.labels[row], strict=True):
                everything.setdefault(k, Counter())[int(image)] += 1
                if label != UNLABELLED:
                    counting.setdefault(k, Counter())[int(image)] += 1
                    truth.setdefault(k, Counter())[int(label)] += 1
    return everything, counting, truth


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_images_that_domains_share_are_all_predicted_and_a_client_sees_the_same_everywhere(size, clients, batch, seed):
    one = domains([size, size])
    data = Domains(one.names, one.images, one.labels["d0"], one.classes)
    slots = slots_of_all(data, Disjoint(), clients, batch)
    stream = build(IID(), data, clients, slots, batch, seed, everything=True)
    everything, counting, truth = shown(stream)
    lasts = ceil(ceil(size / clients) / batch)
    assert len(stream) == 2 * lasts
    assert counting[0] == counting[1] == Counter(range(size))
    assert everything[0] == everything[1]
    assert truth[0] == Counter(data.labels.tolist())
    for t in range(lasts):
        assert (stream.slot(t).images == stream.slot(t + lasts).images).all()
    assert (stream.counted is None) == (lasts * clients * batch == size)


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=4)


@given(SIZES, st.integers(1, 5), st.integers(1, 6), st.integers(0, 3))
def test_every_image_is_predicted_and_counts_once(sizes, clients, batch, seed):
    data = domains(sizes)
    slots = slots_of_all(data, Disjoint(), clients, batch)
    stream = build(NIID(clusters=min(clients, len(sizes))), data, clients, slots, batch, seed)
    everything, counting, truth = shown(stream)
    filled = 0
    for k, size in enumerate(sizes):
        assert counting[k] == Counter(range(size))  # so a domain keeps its mix of classes
        assert truth[k] == Counter(data.labels_of(f"d{k}").tolist())
        lasts = ceil(ceil(size / clients) / batch)
        assert sum(everything[k].values()) == lasts * clients * batch
        filled += lasts * clients * batch - size
    assert not (stream.domain == ABSENT).any()
    said = "".join(note for note in stream.notes if "shown again" in note)
    assert sum(map(int, re.findall(r"(\d+) of d", said))) == filled
    assert len(stream) == sum(ceil(ceil(size / clients) / batch) for size in sizes)


@given(SIZES, st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_no_image_is_dealt_twice_to_a_client_before_all_of_its_own_are_dealt(sizes, clients, batch, slots):
    stream = build(IID(), domains(sizes), clients, slots, batch, seed=0, sampler=Overlap())
    for k, size in enumerate(sizes):
        for client in range(clients):
            slot = np.flatnonzero(stream.domain[:, client] == k)
            row = stream.samples[k, client, stream.visit[slot, client]].ravel()
            first = row[:size]
            assert len(np.unique(first)) == len(first)
            assert max(Counter(row.tolist()).values()) <= -(-len(row) // min(size, len(row)))


@given(SIZES, st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))
def test_what_is_not_shown_is_said(sizes, clients, batch, slots):
    stream = build(IID(), domains(sizes), clients, slots, batch, seed=0)
    everything, _, _ = shown(stream)
    said = next((note for note in stream.notes if "not shown" in note), "")
    hidden = {f"d{k}": size - len(everything[k]) for k, size in enumerate(sizes) if size > len(everything[k])}
    assert {name: int(n) for n, name in re.findall(r"(\d+) of \d+ of (d\d)", said)} == hidden


def test_a_client_moves_on_when_a_domain_is_used_up():
    stream = build(NIID(clusters=2), domains((4, 12)), clients=2, slots=3, batch=2, seed=0)
    assert stream.domain.T.tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]
    assert stream.notes == ("slots for which domains have images: d0 1, d1 3",)


def test_where_clients_come_and_go_nobody_comes_early():
    plan = [[0, ABSENT], [0, 1], [0, 1], [1, 1]]
    stream = build(Fixed(plan), domains((4, 12)), clients=2, slots=3, batch=2, seed=0)
    assert stream.domain.tolist() == [[0, ABSENT], [ABSENT, 1], [ABSENT, 1], [1, 1]]


def test_a_client_without_images_of_its_own_sees_those_of_others_and_none_counts():
    stream = build(IID(), domains((2,)), clients=4, slots=1, batch=1, seed=0)
    slot = stream.slot(0)
    assert sorted(slot.labels[:, 0] != UNLABELLED) == [False, False, True, True]
    assert set(slot.images[:, 0, 0].tolist()) <= {0.0, 1.0}


def test_classes_are_counted_without_images_shown_again():
    data = domains((5, 8))
    stream = build(IID(), data, clients=2, slots=3, batch=2, seed=0)
    expected = [np.bincount(data.labels_of(name), minlength=CLASSES) for name in data.names]
    np.testing.assert_array_equal(stream.class_counts().sum(1), expected)


def test_unlabelled_images_have_no_class():
    stream = build(IID(), domains((6,), labelled=False), clients=2, slots=3, batch=2, seed=0)
    assert (stream.slot(0).labels == UNLABELLED).all()
    assert not stream.class_counts().any()
    assert not stream.all_labelled


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampler": Dirichlet()}, "samples=dirichlet needs labels, and domain 'd0' has none: use samples=disjoint"),
        ({"order": "bursts"}, "order=bursts needs labels, and domain 'd0' has none: use order=shuffled"),
    ],
)
def test_what_deals_by_class_needs_labels(change, said):
    with pytest.raises(UserError, match=said):
        build(IID(), domains((6, 9), labelled=False), clients=2, slots=2, batch=2, seed=0, **change)


def test_classes_arrive_in_bursts():
    stream = build(IID(), domains((20, 31)), clients=2, slots=8, batch=2, seed=0, order="bursts")
    for k in range(2):
        for client in range(2):
            rows = stream.samples[k, client].ravel()[stream.counted[k, client].ravel()]
            labels = stream.data.labels_of(f"d{k}")[rows]
            assert (np.diff(labels) != 0).sum() + 1 == len(np.unique(labels))


@pytest.mark.parametrize("sampler", [Dirichlet(0.1), LongTail(0.05)])
def test_a_skew_is_the_clients_own_in_every_domain_and_what_it_repeats_is_said(sampler):
    data = domains((300, 240))
    stream = build(IID(), data, clients=3, slots=30, batch=10, seed=1, sampler=sampler)
    counts = stream.class_counts()
    share = counts / counts.sum(2, keepdims=True)
    assert np.abs(share[0] - share[1]).max() < 0.02
    assert any("because their class has too few" in note for note in stream.notes)


def test_a_class_that_a_domain_lacks_is_left_to_the_others():
    data = domains((30, 30))
    labels = {"d0": np.arange(30) % 3, "d1": np.arange(30) % 2}
    stream = build(
        IID(), Domains(data.names, data.images, labels, data.classes), 2, 3, 10, seed=0, sampler=LongTail(0.1)
    )
    counts = stream.class_counts()
    assert counts[0, :, 2].all()
    assert not counts[1, :, 2].any()
    assert (counts.sum(2) == 30).all()


def test_two_domains_have_orders_of_their_own():
    stream = build(IID(), domains((24, 24)), clients=2, slots=6, batch=2, seed=0)
    assert not np.array_equal(stream.samples[0], stream.samples[1])
