"""Clusters of clients walk through rotated orders of the domains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.errors import UserError
from fedctta.streams import build
from fedctta.streams.clusters import IID, NIID, rotation, shifts

FIFTEEN = tuple(f"d{k}" for k in range(15))


@st.composite
def walks(draw):
    """Draw (clients, clusters, domains, slots, slots_per_shift) that fit each other."""
    clients, domains = draw(st.integers(1, 20)), draw(st.integers(1, 16))
    clusters, repeats, length = (
        draw(st.integers(1, min(clients, domains))),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    return clients, clusters, domains, repeats * length, length


@given(walks())
def test_clusters_are_in_different_domains_at_any_time_and_meet_all_equally(walk):
    clients, clusters, domains, slots, length = walk
    plan = NIID(clusters, length).plan(clients, tuple(map(str, range(domains))), slots)
    assert plan.shape == (domains * slots, clients)
    assert plan.dtype == np.int32
    assert all(len(set(row)) == clusters for row in plan)
    for client in range(clients):
        assert np.array_equal(np.bincount(plan[:, client], minlength=domains), [slots] * domains)


@given(walks())
def test_clusters_are_neighbours_of_nearly_equal_number(walk):
    clients, clusters, domains, slots, length = walk
    row = NIID(clusters, length).plan(clients, tuple(map(str, range(domains))), slots)[0]
    starts = np.flatnonzero(np.diff(row)) + 1
    sizes = np.diff([0, *starts, clients])
    assert len(sizes) == clusters
    assert sizes.max() - sizes.min() <= 1


@given(walks())
def test_a_domain_lasts_as_long_as_asked(walk):
    clients, clusters, domains, slots, length = walk
    plan = NIID(clusters, length).plan(clients, tuple(map(str, range(domains))), slots)
    changes = np.flatnonzero((plan[1:] != plan[:-1]).any(1)) + 1
    expected = np.arange(length, len(plan), length) if domains > 1 else []
    assert np.array_equal(changes, expected)


@given(st.integers(1, 40).flatmap(lambda d: st.tuples(st.integers(1, d), st.just(d))))
def test_a_rotation_keeps_clusters_apart(pair):
    clusters, domains = pair
    starts = {g * rotation(clusters, domains) % domains for g in range(clusters)}
    assert len(starts) == clusters


@pytest.mark.parametrize(("clusters", "step"), [(1, 15), (4, 4), (8, 2), (15, 1)])
def test_the_rotations_of_the_papers(clusters, step):
    assert rotation(clusters, 15) % 15 == step % 15


def test_the_papers_niid_stream():
    plan = NIID().plan(20, FIFTEEN, 50)
    for client in range(20):
        order = [(k + 4 * (client // 5)) % 15 for k in range(15)]
        assert np.array_equal(plan[:, client], np.repeat(order, 50))


def test_the_papers_iid_stream():
    assert np.array_equal(IID().plan(20, FIFTEEN, 50), np.repeat(np.arange(15), 50)[:, None].repeat(20, 1))


@pytest.mark.parametrize("clients", [1, 7])
@pytest.mark.parametrize("length", [None, 1, 3])
def test_iid_is_one_cluster(clients, length):
    one = NIID(clusters=1, slots_per_shift=length).plan(clients, FIFTEEN, 6)
    assert np.array_equal(IID(length).plan(clients, FIFTEEN, 6), one)


@pytest.mark.parametrize("loop", [1, 2, 5, 10, 25, 50])
def test_temporal_heterogeneity_is_one_over_the_slots_of_a_shift(make_domains, loop):
    data = make_domains(15, images=4 * 50, side=1)
    stream = build(NIID(slots_per_shift=50 // loop), data, clients=4, slots=50, batch=1, seed=0)
    assert stream.temporal_heterogeneity == pytest.approx(loop / 50)


@pytest.mark.parametrize(("clusters", "clients"), [(1, 20), (2, 20), (4, 20), (5, 20), (10, 20), (8, 16), (15, 15)])
def test_spatial_heterogeneity_is_clusters_over_clients(make_domains, clusters, clients):
    data = make_domains(15, images=clients, side=1)
    stream = build(NIID(clusters), data, clients, slots=1, batch=1, seed=0)
    assert stream.spatial_heterogeneity == pytest.approx(clusters / clients)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (NIID(clusters=4), r"niid.clusters=4 must be between 1 and 3 \(there are 5 clients and 3 domains\)"),
        (NIID(clusters=1, slots_per_shift=4), "niid.slots_per_shift=4 must divide slots=6"),
        (NIID(clusters=1, slots_per_shift=12), "niid.slots_per_shift=12 must divide slots=6"),
        (IID(slots_per_shift=4), "iid.slots_per_shift=4 must divide slots=6"),
    ],
)
def test_a_walk_that_cannot_be_is_told(schedule, message):
    with pytest.raises(UserError, match=f"^{message}"):
        schedule.plan(5, ("a", "b", "c"), 6)


def test_more_clusters_than_clients_are_told():
    with pytest.raises(UserError, match=r"niid.clusters=4 must be between 1 and 3"):
        NIID().plan(3, FIFTEEN, 1)


def test_the_default_number_of_clusters_fits_clients_and_domains():
    for clients, domains, clusters in ((20, 15, 4), (3, 15, 3), (20, 2, 2), (1, 1, 1)):
        assert NIID(slots_per_shift=5).fit(clients, domains) == NIID(clusters, slots_per_shift=5)
    assert NIID(clusters=5).fit(3, 15) == NIID(clusters=5), "a number of the user's is left to be refused"
    assert IID().fit(3, 15) == IID()


def test_a_walk_is_repeated_until_every_domain_had_its_slots():
    assert shifts(3, 4, 2, "key").tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert shifts(2, 3, None, "key").tolist() == [0, 0, 0, 1, 1, 1]
