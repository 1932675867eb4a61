"""Who keeps a place."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.books.room import choose_domains, choose_parts, find_last, sort_by


def columns(*parts):
    """Domain, device and version of parts."""
    return [torch.tensor(column) for column in zip(*parts, strict=True)]


def test_sorted_by_one_key_after_the_other():
    assert sort_by(torch.tensor([1, 0, 1]), torch.tensor([5, 9, 4])).tolist() == [1, 2, 0]


def test_a_domain_keeps_its_newest_parts():
    parts = columns((0, 1, 5), (0, 2, 7), (1, 3, 1), (0, 4, 6), (0, 5, 6))
    assert choose_parts(*parts, 2).tolist() == [False, True, True, True, False]  # of equals, the lower device's


def test_nobody_fills_a_domain_with_names_of_its_own():
    """Device 9 sends three parts of one domain, newer than all others'."""
    parts = columns((0, 9, 30), (0, 9, 40), (0, 9, 50), (0, 1, 5), (0, 2, 6))
    assert choose_parts(*parts, 3).tolist() == [False, False, True, True, True]
    assert choose_parts(*parts, 4).tolist() == [False, True, True, True, True]


held = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=2, max_size=8)


@given(held)
@settings(deadline=None, max_examples=60)
def test_the_last_part_is_the_one_that_is_left_out(parts):
    device, version = (torch.tensor(column) for column in zip(*parts, strict=True))
    kept = choose_parts(torch.zeros_like(device), device, version, len(parts) - 1)
    assert (~kept).nonzero().tolist() == [[find_last([(*part, name) for name, part in enumerate(parts)])]]


def test_a_book_keeps_the_domains_seen_last():
    parts = columns(*((k, k, 10 + k) for k in range(5)))
    assert choose_domains(*parts, 3, alone=1).tolist() == [False, False, True, True, True]
    assert choose_domains(*parts, 5, alone=1).all()


def test_a_device_that_invents_domains_takes_few_places():
    """Domains 0 to 3 are those of many; then device 9 tells of six new ones."""
    honest = [(k, device, 10 + k) for k in range(4) for device in range(3)]
    invented = [(4 + k, 9, 100 + k) for k in range(6)]
    kept = choose_domains(*columns(*honest, *invented), 5, alone=2)
    assert kept.tolist() == [False, True, True, True] + [False] * 4 + [True] * 2
    lonely = columns(*((k, 9, 100 + k) for k in range(6)))
    assert choose_domains(*lonely, 5, alone=2).tolist() == [False] + [True] * 5  # where nobody else needs them


def test_two_devices_that_agree_take_no_more_than_both_alone_could():
    honest = [(k, device, 10 + k) for k in range(6) for device in range(3)]
    invented = [(6 + k, device, 100 + k) for k in range(6) for device in (8, 9)]
    kept = choose_domains(*columns(*honest, *invented), 6, alone=1)
    assert kept.tolist() == [False] + [True] * 5 + [False] * 5 + [True]
