"""The server's book."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.books.library import (
    Rules,
    Shelf,
    add_up,
    arrange,
    clip_to_median,
    clip_to_source,
    confirm,
    find_headings,
    find_time,
    from_tensors,
    hand_out,
    merge,
    receive,
    sum_domains,
    to_tensors,
    withdraw,
)
from fedctta.books.rows import Layout

LAYOUT, RULES, ROOMY = Layout(2), Rules(domains=4, parts=3, few=2000), Rules(domains=8, parts=8)
NOBODY = torch.zeros(0, dtype=torch.int64)


def part(look, images=100.0, moment=0.0):
    """A row of `images` images that all look alike, with one moment."""
    f = torch.full((10,), float(look))
    wide = f.square() + torch.tensor([0.5, 1.5] * 5)  # a variance about 1
    counts = {name: torch.tensor([images]) for name in ("images", "measured")}
    return LAYOUT.row(f, **counts, look=images * f, square=images * wide, moments=images * torch.full((4,), moment))


def letter(device, name, version, row):
    return torch.tensor([device]), torch.tensor([name]), torch.tensor([version]), row[None]


def shelve(*letters, rules=RULES):
    """Receive one letter after the other, each time arranging what is there."""
    shelf = Shelf.empty(LAYOUT.width)
    for each in letters:
        shelf = arrange(receive(shelf, *letter(*each), NOBODY), LAYOUT, rules)
    return shelf


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def counted(shelf):
    rows = add_up(shelf, LAYOUT, RULES)
    return rows, sum_domains(shelf, rows, RULES.domains), find_headings(shelf, RULES.domains)


letters = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12, unique=True
)


def told(device, name, version):
    """What a device says of a domain at a time: it has seen more than before."""
    return device, name, version, part(look=4.0 * name, images=10.0 * version + device, moment=0.1 * version)


@given(letters, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_letters_may_come_twice_and_in_any_order(sent, random):
    once = shelve(*(told(*each) for each in sorted(sent)), rules=ROOMY)
    again = [*sent, *random.choices(sent, k=5)]
    random.shuffle(again)
    assert same(shelve(*(told(*each) for each in again), rules=ROOMY), once)


@given(letters, st.data())
@settings(deadline=None, max_examples=40)
def test_two_regional_servers_and_a_root_hold_what_one_server_holds(sent, data):
    where = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=len(sent), max_size=len(sent)))
    regions = [[told(*s) for s, w in zip(sent, where, strict=True) if w in (r, 2)] for r in (0, 1)]
    root = arrange(merge(*(shelve(*region, rules=ROOMY) for region in regions)), LAYOUT, ROOMY)
    assert same(root, shelve(*(told(*each) for each in sent), rules=ROOMY))


@given(letters)
@settings(deadline=None, max_examples=20)
def test_what_a_device_sent_can_be_taken_out_again(sent):
    honest = [each for each in sent if each[0] != 0]
    without = withdraw(shelve(*(told(*each) for each in sent), rules=ROOMY), 0)
    expected = shelve(*(told(*each) for each in honest), rules=ROOMY)
    assert same(arrange(without, LAYOUT, ROOMY)[:5], expected[:5])  # but for the time, which goes on


def test_names_of_one_domain_are_found_to_be_one_by_their_looks():
    shelf = shelve((0, 11, 1, part(0.0)), (1, 22, 1, part(0.1)), (2, 33, 1, part(9.0)))
    assert shelf.domain[shelf.name == 11] == shelf.domain[shelf.name == 22] != shelf.domain[shelf.name == 33]
    assert counted(shelf)[2].tolist() == [11, 33, 0, 0]


def test_a_device_is_handed_what_all_others_have_seen():
    shelf = shelve((0, 11, 1, part(0.0, 100.0, 1.0)), (1, 22, 1, part(0.0, 50.0, 2.0)))
    rows, sums, headings = counted(shelf)
    first = hand_out(shelf, rows, sums, headings, 0, torch.tensor([0, 11, 5, 0]))
    assert LAYOUT.of(first.book, "images").tolist() == [50, 0, 0, 0]
    torch.testing.assert_close(LAYOUT.of(first.book, "moments")[0], torch.full((4,), 100.0))
    assert first.place.tolist() == [-1, 0, -1, -1]
    stranger = hand_out(shelf, rows, sums, headings, 7, torch.zeros(4, dtype=torch.int64))
    assert LAYOUT.of(stranger.book, "images").tolist() == [150, 0, 0, 0]
    assert stranger.place.tolist() == [-1] * 4


def test_the_newest_parts_and_domains_are_kept():
    many = shelve(*((device, 11, device + 1, part(0.0)) for device in range(5)))
    assert many.device.tolist() == [2, 3, 4]
    domains = shelve(*((0, 10 + k, k + 1, part(9.0 * k)) for k in range(6)))
    assert domains.name.tolist() == [12, 13, 14, 15]
    assert domains.domain.tolist() == [0, 1, 2, 3]


def test_a_device_that_has_united_two_domains_has_one_name_less():
    shelf = shelve((0, 11, 1, part(0.0)), (0, 12, 1, part(9.0)), (1, 11, 1, part(0.0)))
    after = receive(shelf, *letter(0, 11, 2, part(0.0, 200.0)), torch.tensor([0]))
    assert sorted(zip(after.device.tolist(), after.name.tolist(), strict=True)) == [(0, 11), (1, 11)]


def test_a_lie_among_many_is_pulled_to_the_others():
    means = torch.cat([torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), torch.full((1, 5), 1000.0)])
    clipped = clip_to_median(means, 2.0)
    assert clipped[-1].norm() < 10
    assert torch.equal(clip_to_median(means[-2:], 2.0), means[-2:])  # two have no majority


def test_a_device_has_one_voice_in_a_domain_however_many_names_it_sends():
    """Four names of one liar against three honest devices: the median is an honest one."""
    honest = [(device, 50, 1, part(0.0, 100.0, 0.1 * device)) for device in range(3)]
    lies = [(9, name, 1, part(0.0, 100.0, 8.0)) for name in (11, 12, 13, 14)]
    rules = Rules(domains=4, parts=8, most=150)
    shelf = shelve(*honest, *lies, rules=rules)
    assert len(shelf.name) == 7
    assert not shelf.domain.any()
    rows = add_up(shelf, LAYOUT, rules)
    assert LAYOUT.of(rows, "images")[shelf.device == 9].sum() == pytest.approx(150)
    means = LAYOUT.of(rows, "moments") / LAYOUT.of(rows, "measured")[:, None]
    assert means[shelf.device == 9].max() <= 0.1 + 2 * 0.1 + 1e-6


def test_moments_far_from_the_source_are_shortened_in_every_domain():
    moments = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0], [30.0, 40.0]])
    torch.testing.assert_close(clip_to_source(moments, 2.0), torch.tensor([[1, 0], [0, 2], [0.5, 0], [1.2, 1.6]]))
    assert torch.equal(clip_to_source(moments[-2:], 2.0), moments[-2:])


def test_domains_that_three_devices_know_count_in_full():
    domain, images = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([100.0, 10, 50, 100, 10])
    assert confirm(domain, images, Rules(few=20)).tolist() == [1, 1, 1, pytest.approx(0.2), 1]


def test_two_devices_cannot_move_the_time():
    shelf = shelve(
        *((device, 11, version, part(0.0)) for device, version in enumerate((5, 6, 7, 10**9, 10**9))), rules=ROOMY
    )
    assert find_time(shelf) == 7
    assert find_time(shelve((0, 11, 5, part(0.0)), (1, 11, 8, part(0.0)))) == 8
    assert find_time(Shelf.empty(LAYOUT.width)) == 0
    rows = add_up(shelf._replace(time=find_time(shelf)), LAYOUT, ROOMY)
    assert LAYOUT.of(rows, "images").max() <= 100  # what claims to be of the future does not count more


def test_old_parts_fade_and_large_ones_are_capped():
    rules = Rules(domains=4, half_life=10, most=60, few=60)
    shelf = arrange(receive(shelve((0, 11, 1, part(0.0))), *letter(1, 11, 11, part(0.0, 50.0)), NOBODY), LAYOUT, rules)
    rows = add_up(shelf, LAYOUT, rules)
    assert LAYOUT.of(rows, "images").tolist() == [pytest.approx(30), 50]
    assert LAYOUT.of(rows, "measured").tolist() == [pytest.approx(30), 50]


def test_a_shelf_is_saved_as_tensors():
    shelf = shelve((0, 11, 1, part(0.0)))
    assert same(from_tensors(to_tensors(shelf)), shelf)
