"""Clients that roam through the domains, each in its own order."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.domains import Domains
from fedctta.errors import UserError
from fedctta.streams import build
from fedctta.streams.roam import Roam

NAMES = tuple(f"domain {k}" for k in range(6))


def stays(column):
    edges = np.flatnonzero(np.diff(column)) + 1
    return np.diff([0, *edges, len(column)])


def test_a_client_walks_in_its_own_order_and_anew_for_every_seed():
    plan = Roam().set_up(10, 0).plan(3, NAMES, slots=50)
    assert plan.shape == (300, 3)
    assert not (plan[:, 0] == plan[:, 1]).all()
    assert not (plan == Roam().set_up(10, 1).plan(3, NAMES, slots=50)).all()
    assert (plan == Roam().set_up(10, 0).plan(3, NAMES, slots=50)).all()


def test_stays_lie_between_the_bounds_in_images():
    plan = Roam(shortest=40, longest=90).set_up(10, 0).plan(1, tuple(map(str, range(5000))), slots=1)
    inner = np.concatenate([stays(column)[1:-1] for column in plan.T])
    assert inner.min() >= 4
    assert inner.max() <= 9
    single = Roam(shortest=3, longest=5).set_up(10, 0).plan(5, NAMES, slots=4)
    assert min(stays(column).min() for column in single.T) == 1  # a stay is one batch at least


def test_stays_are_log_uniform():
    plan = Roam(shortest=1, longest=100).set_up(1, 0).plan(40, tuple(map(str, range(5000))), slots=1)
    lengths = np.concatenate([stays(column)[1:-1] for column in plan.T])
    assert (lengths < 10).mean() == pytest.approx(0.5, abs=0.05)


def test_clean_images_are_as_frequent_as_asked():
    names = (*NAMES, "clean")
    plan = Roam(shortest=1, longest=1, clean=True, share=0.3).set_up(1, 0).plan(50, names, slots=50)
    assert plan.shape == (300, 50)  # the clean domain adds no time
    assert (plan == 6).mean() == pytest.approx(0.3, abs=0.02)
    assert (Roam(shortest=1, longest=1).set_up(1, 0).plan(50, NAMES, slots=50) == 0).mean() == pytest.approx(
        1 / 6, abs=0.02
    )


def test_a_clients_images_are_shown_in_turn_however_long_it_stays():
    images = np.zeros((40, 4, 4, 3), np.uint8)
    data = Domains(NAMES, dict.fromkeys(NAMES, images), np.arange(40) % 2, ("a", "b"))
    stream = build(Roam(longest=1000), data, clients=2, slots=4, batch=5, seed=0)
    assert (stream.visit[:, 0] == np.arange(24) % 4).all()
    shown = stream.samples[0, stream.visit[:, 0]]
    assert (np.unique(shown, return_counts=True)[1] == 6).all()


def test_domains_with_images_of_their_own_are_shown_again_from_the_start():
    rng = np.random.default_rng(0)
    sizes = {"one": 20, "two": 60}
    images = {name: rng.integers(0, 255, (n, 4, 4, 3), dtype=np.uint8) for name, n in sizes.items()}
    labels = {name: np.zeros(n, np.int64) for name, n in sizes.items()}
    stream = build(Roam(), Domains(("one", "two"), images, labels, ("a", "b")), clients=2, slots=6, batch=5, seed=0)
    assert len(stream) == 12
    for k, lasts in enumerate((2, 6)):
        assert stream.visit[stream.domain == k].max() < lasts
    assert all(len(stream.slot(t).images) == 2 for t in range(12))


@pytest.mark.parametrize("wrong", [{"shortest": 0}, {"shortest": 9, "longest": 8}, {"share": 1.5}])
def test_bounds_are_checked(wrong):
    with pytest.raises(UserError, match=r"roam\."):
        Roam(**wrong)
