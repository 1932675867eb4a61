"""One domain of the server's book."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.books.domain import Domain
from fedctta.books.library import Rules
from fedctta.books.rows import Layout

LAYOUT = Layout(2)


def make_domain(*parts, room=4):
    """A domain with parts (device, name, version), that of device d with 10 d + 10 images."""
    domain = Domain(LAYOUT, Rules(parts=room, few=2000, half_life=100), 50, np.zeros(LAYOUT.short, np.float32))
    for device, name, version in parts:
        domain.put(device, name, version, make_row(10.0 * device + 10))
    return domain


def make_row(images):
    row = np.zeros(LAYOUT.width, np.float32)
    for name in ("images", "measured"):
        row[LAYOUT.parts[name]] = images
    row[LAYOUT.parts["moments"]] = images
    return row


def add_up(domain, time=10, edition=1):
    domain.measure()
    domain.add_up(time, np.inf, edition)
    return domain


def test_a_device_is_not_handed_its_own_parts():
    domain = add_up(make_domain((0, 50, 10), (1, 50, 10), (1, 51, 10)))
    assert domain.sum_others(9, 10)[0] == pytest.approx(10 + 20 + 20)
    assert domain.sum_others(1, 10)[0] == pytest.approx(10)
    assert domain.sum_others(0, 110)[0] == pytest.approx(20)  # one half life later
    np.testing.assert_allclose(domain.sum_others(1, 10)[LAYOUT.parts["moments"]], 10, rtol=1e-5)


def test_what_comes_counts_when_the_domain_is_added_up_and_what_leaves_goes_at_once():
    domain = add_up(make_domain((0, 50, 10), (1, 50, 10)))
    domain.put(2, 50, 10, make_row(30.0))
    assert domain.sum_others(9, 10)[0] == pytest.approx(30)
    domain.take_out((1, 50))
    assert domain.sum_others(9, 10)[0] == pytest.approx(10)
    assert domain.looks[0] == pytest.approx(10 + 30)
    assert add_up(domain).sum_others(9, 10)[0] == pytest.approx(40)


def test_it_is_due_when_an_eighth_of_the_parts_has_changed():
    domain = add_up(make_domain(*((d, 50, 10) for d in range(16)), room=20))
    assert not domain.is_due
    domain.take_out((3, 50), to_replace=True)
    domain.put(3, 50, 11, make_row(5.0))
    assert not domain.is_due  # one change, not two
    domain.take_out((4, 50))
    assert domain.is_due


def test_an_edition_stays_until_there_is_news():
    domain = add_up(make_domain((0, 50, 10), (1, 50, 10)))
    assert add_up(domain, 11, 2).edition == 1
    domain.put(2, 50, 10, make_row(30.0))
    assert add_up(domain, 11, 3).edition == 3


def test_the_oldest_part_goes_but_first_those_of_a_device_that_has_several():
    domain = make_domain((0, 50, 3), (1, 50, 2), (2, 50, 9), (3, 50, 9))
    assert domain.oldest == 1
    assert domain.make_room(7, 50, 5) == (1, 50)
    assert domain.make_room(7, 50, 1) == (7, 50)
    assert domain.make_room(2, 51, 99) == (2, 50)  # its second newest, though older ones of others are there
    assert make_domain((0, 50, 3)).make_room(7, 50, 1) is None
    assert make_domain((0, 50, 3)).oldest == 0


def test_a_domain_goes_on_with_the_heading_and_edition_of_another():
    domain, other = add_up(make_domain((0, 7, 1), (1, 9, 1)), edition=5), make_domain((1, 9, 1))
    domain.take_out((0, 7))
    assert domain.heading == 50  # though no part has this name
    other.follow(domain)
    assert (other.heading, other.edition) == (50, 5)
