"""Who sees which images, when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedctta.errors import UserError
from fedctta.sampling.plain import Disjoint, Overlap
from fedctta.sampling.skewed import Dirichlet
from fedctta.streams import ABSENT, Schedule, Stream, _visits, build
from fedctta.streams.clusters import IID, NIID


@dataclass(frozen=True)
class Fixed(Schedule):
    """A plan given by the test."""

    name: ClassVar[str] = "fixed"
    table: Any = ()

    def plan(self, clients, domains, slots):
        return np.asarray(self.table)


@st.composite
def shapes(draw):
    """Draw (clients, slots, batch, domains, images): as many images as needed for disjoint samples, or a few more."""
    clients, slots, batch = (draw(st.integers(1, most)) for most in (6, 4, 3))
    return clients, slots, batch, draw(st.integers(1, 5)), clients * slots * batch + draw(st.integers(0, 5))


def numbered(data):
    """Let every image's label be its index, so that a slot tells which images it holds."""
    return replace(data, labels=np.arange(len(data.labels)))


def seen_in(stream: Stream, client: int) -> dict[int, list[int]]:
    """Return the indices of the images a client meets in every domain, in order, from a stream of numbered images."""
    seen: dict[int, list[int]] = {}
    for t in range(len(stream)):
        slot = stream.slot(t)
        row = int((slot.domain[:client] != ABSENT).sum())
        if slot.domain[client] != ABSENT:
            seen.setdefault(int(slot.domain[client]), []).extend(slot.labels[row].tolist())
    return seen


@given(shapes(), st.sampled_from([Disjoint(), Overlap()]), st.integers(0, 3))
def test_a_client_sees_the_same_images_in_every_domain_and_none_twice(make_domains, shape, sampler, seed):
    clients, slots, batch, domains, images = shape
    data = numbered(make_domains(domains, images, side=1))
    stream = build(NIID(clusters=min(clients, domains)), data, clients, slots, batch, seed, sampler)
    assert len(stream) == domains * slots
    assert stream.clients == clients
    chosen = []
    for client in range(clients):
        seen = seen_in(stream, client)
        assert set(seen) == set(range(domains))
        first = seen[0]
        assert all(indices == first for indices in seen.values())
        assert len(set(first)) == len(first) == slots * batch
        chosen += first
    if sampler == Disjoint():
        assert len(set(chosen)) == len(chosen)


@given(shapes())
def test_a_slot_holds_the_pixels_and_labels_of_its_images(make_domains, shape):
    clients, slots, batch, domains, images = shape
    data = make_domains(domains, images, side=2)
    indices = build(NIID(clusters=min(clients, domains)), numbered(data), clients, slots, batch, seed=1)
    stream = build(NIID(clusters=min(clients, domains)), data, clients, slots, batch, seed=1)
    for t in range(len(stream)):
        slot, which = stream.slot(t), indices.slot(t).labels
        assert slot.images.shape == (clients, batch, 2, 2, 3)
        assert slot.images.dtype == np.uint8
        assert slot.labels.dtype == np.int64
        for client, domain in enumerate(slot.domain):
            np.testing.assert_array_equal(slot.images[client], data.images[f"d{domain}"][which[client]])
        np.testing.assert_array_equal(slot.labels, data.labels[which])


@given(arrays(np.int32, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.integers(ABSENT, 2)))
def test_visits_count_the_earlier_slots_in_the_same_domain(plan):
    visit = _visits(plan, domains=3)
    for t, client in np.ndindex(plan.shape):
        if plan[t, client] != ABSENT:
            assert visit[t, client] == (plan[:t, client] == plan[t, client]).sum()


@given(arrays(np.int32, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.integers(ABSENT, 2)))
def test_any_plan_shows_fresh_images_to_those_present(make_domains, plan):
    if (plan == ABSENT).all():
        plan[0, 0] = 0
    data = numbered(make_domains(3, images=6 * 4 * 2, side=1))
    stream = build(Fixed(plan), data, plan.shape[1], slots=1, batch=2, seed=0)
    for t in range(len(stream)):
        slot = stream.slot(t)
        present = int((plan[t] != ABSENT).sum())
        assert slot.images.shape == (present, 2, 1, 1, 3)
        assert slot.labels.shape == (present, 2)
        np.testing.assert_array_equal(slot.domain, plan[t])
    for client in range(plan.shape[1]):
        lists = seen_in(stream, client).values()
        longest = max(lists, key=len, default=[])
        assert all(indices == longest[: len(indices)] for indices in lists)
        assert len(set(longest)) == len(longest)


def test_the_papers_stream_uses_every_image_once_in_every_domain(make_domains):
    data = numbered(make_domains(15, images=10_000, side=1))
    stream = build(NIID(), data, clients=20, slots=50, batch=10, seed=0)
    assert len(stream) == 750
    assert np.array_equal(np.sort(stream.samples.ravel()), np.arange(10_000))
    assert stream.spatial_heterogeneity == pytest.approx(0.2)
    assert stream.temporal_heterogeneity == pytest.approx(0.02)
    assert stream.shape == (1, 1, 3)


def test_overlapping_clients_draw_independently(make_domains):
    data = make_domains(1, images=10_000, side=1)
    stream = build(IID(), data, clients=20, slots=50, batch=10, seed=0, sampler=Overlap())
    assert len(np.unique(stream.samples)) == pytest.approx(10_000 * (1 - 0.95**20), abs=150)  # 6,415 expected


@pytest.mark.parametrize("sampler", [Disjoint(), Overlap(), Dirichlet(0.1)])
def test_the_seed_decides_the_images_and_nothing_else(domains, sampler):
    def drawn(seed: int, schedule: Schedule):
        return build(schedule, domains, clients=4, slots=3, batch=4, seed=seed, sampler=sampler)

    assert np.array_equal(drawn(0, IID()).samples, drawn(0, NIID(clusters=2)).samples)
    assert not np.array_equal(drawn(0, IID()).samples, drawn(1, IID()).samples)
    assert np.array_equal(drawn(0, IID()).domain, drawn(1, IID()).domain)


def test_heterogeneity_counts_only_those_present(domains):
    plan = [[0, 0, 1, 2], [0, 0, ABSENT, ABSENT], [ABSENT] * 4]
    stream = build(Fixed(plan), domains, clients=4, slots=1, batch=1, seed=0)
    assert stream.spatial_heterogeneity == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_temporal_heterogeneity_is_one_when_every_slot_differs(domains):
    always = build(Fixed([[0, 1], [1, 2], [0, 1]]), domains, clients=2, slots=1, batch=1, seed=0)
    never = build(Fixed([[0, 1], [0, 1], [0, 1]]), domains, clients=2, slots=1, batch=1, seed=0)
    assert always.temporal_heterogeneity == 1
    assert never.temporal_heterogeneity == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients=0 must be at least 1"),
        ({"slots": 0}, "slots=0 must be at least 1"),
        ({"batch": -1}, "batch=-1 must be at least 1"),
        ({"batch": 5}, "4 clients x 15 images need more than the 48 images .* or samples=overlap"),
        ({"batch": 17, "sampler": Overlap()}, "^51 images per client are more than the 48 .* use fewer slots or a sm"),
    ],
)
def test_a_stream_that_cannot_be_is_told(domains, change, message):
    fits = {"clients": 4, "slots": 3, "batch": 4, "seed": 0}
    assert build(IID(), domains, **fits).samples.shape == (4, 3, 4)
    with pytest.raises(UserError, match=message):
        build(IID(), domains, **{**fits, **change})


@pytest.mark.parametrize("plan", [np.zeros((0, 2)), [[ABSENT, ABSENT]]])
def test_a_stream_without_a_single_visit_is_told(domains, plan):
    with pytest.raises(UserError, match="stream fixed shows no client any domain"):
        build(Fixed(plan), domains, clients=2, slots=1, batch=1, seed=0)


def test_a_schedule_must_bring_a_plan():
    assert Schedule().default_clients() == 20
    with pytest.raises(TypeError, match="Schedule must define plan"):
        Schedule().plan(1, ("d0",), 1)


def test_classes_are_counted_by_domain_and_client(domains):
    plan = [[0, 1], [0, ABSENT], [2, 1]]
    stream = build(Fixed(plan), domains, clients=2, slots=2, batch=3, seed=0)
    expected = np.zeros((3, 2, 3), int)
    for t in range(3):
        slot = stream.slot(t)
        for row, client in enumerate(np.flatnonzero(slot.domain != ABSENT)):
            for label in slot.labels[row]:
                expected[slot.domain[client], client, label] += 1
    assert (stream.class_counts() == expected).all()


def test_classes_arrive_in_bursts_in_every_domain(domains):
    stream = build(IID(), domains, clients=2, slots=4, batch=4, seed=0, order="bursts")
    for client in range(2):
        labels = np.concatenate([stream.slot(t).labels[client] for t in range(4)])
        assert (np.diff(labels) != 0).sum() + 1 == len(np.unique(labels))
