"""The server's book for many devices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.books.library import Rules, Shelf, add_up, arrange, find_headings, hand_out, receive, sum_domains
from fedctta.books.rows import Layout
from fedctta.books.store import Store

LAYOUT, ROOMY = Layout(2), Rules(domains=8, parts=16, half_life=50.0)


def part(look, images=100.0, moment=0.0):
    """A row of images that all look alike, scored and measured."""
    f = torch.full((10,), float(look))
    wide = f.square() + torch.tensor([0.5, 1.5] * 5)
    counts = {name: torch.tensor([images]) for name in ("images", "measured")} | {"scored": torch.tensor([images / 2])}
    entropy, classes = images * torch.arange(5) / 9 * (1 + moment), images * torch.full((80,), 0.1 * moment)
    moments = images * torch.tensor([1.0, 2.0, -1.0, 0.5]) * moment
    return LAYOUT.row(
        f, **counts, look=images * f, square=images * wide, entropy=entropy, classes=classes, moments=moments
    )


visits = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True), st.integers(1, 60)),
    min_size=1,
    max_size=14,
)


def tell(device, domains, time):
    """What a device sends: its name, version and row of every domain it knows; device 5 lies."""
    names = torch.tensor([100 * domain + (device % 2) for domain in domains])
    rows = [part(4.0 * d, 10.0 * time + device, 50.0 if device == 5 else 0.1 * device + 0.01 * time) for d in domains]
    return device, names, torch.full_like(names, time), torch.stack(rows)


def play(store, shelf, sent):
    for visit in sent:
        device, names, versions, rows = tell(*visit)
        store.receive(device, names, versions, rows)
        who = torch.full_like(names, device)
        shelf = arrange(receive(shelf, who, names, versions, rows, torch.tensor([device])), LAYOUT, store.rules)
    return shelf


def agree(store, shelf):
    counted = add_up(shelf, LAYOUT, store.rules)
    sums = sum_domains(shelf, counted, store.rules.domains)
    headings = find_headings(shelf, store.rules.domains)
    for device in (0, 1, 5, 9):
        names = torch.tensor([100, 200, 301, 7])
        expected = hand_out(shelf, counted, sums, headings, device, names)
        got = store.hand_out(device, names)
        torch.testing.assert_close(got.book, expected.book, atol=1e-2, rtol=1e-4)
        assert got.heading.tolist() == expected.heading.tolist()
        assert got.place.tolist() == expected.place.tolist()
        assert int(got.time) == int(expected.time)


@given(visits)
@settings(deadline=None, max_examples=25)
def test_a_store_that_is_always_fresh_hands_out_what_the_library_does(sent):
    store = Store(LAYOUT, ROOMY, stale=0, names=0)
    shelf = Shelf.empty(LAYOUT.width)
    for visit in sent:
        shelf = play(store, shelf, [visit])
        agree(store, shelf)


@given(visits)
@settings(deadline=None, max_examples=25)
def test_after_a_refresh_every_store_hands_out_what_the_library_does(sent):
    store = Store(LAYOUT, ROOMY)
    shelf = play(store, Shelf.empty(LAYOUT.width), sent)
    store.refresh()
    agree(store, shelf)


@given(visits)
@settings(deadline=None, max_examples=25)
def test_sums_stay_the_sums_of_their_parts(sent):
    store = Store(LAYOUT, ROOMY, stale=2.0)
    play(store, Shelf.empty(LAYOUT.width), sent)
    torch.testing.assert_close(store.sums, store.counted.sum(1), atol=1e-2, rtol=1e-4)
    assert (store.counted[store.name == 0] == 0).all()


def one(store, device, name, version, row):
    store.receive(device, torch.tensor([name]), torch.tensor([version]), row[None])


def test_between_refreshes_a_lie_is_pulled_to_the_last_median():
    store = Store(LAYOUT, ROOMY, stale=3.0)
    for device in range(8):
        one(store, device, 11, 1, part(0.0, moment=1.0 + 0.01 * device))
    store.refresh()
    one(store, 9, 11, 1, part(0.0, moment=1000.0))
    book = store.hand_out(3, torch.tensor([11])).book[0]
    assert LAYOUT.of(book, "images") == pytest.approx(800)
    torch.testing.assert_close(
        LAYOUT.of(book, "moments") / 800, torch.tensor([1.0, 2.0, -1.0, 0.5]), atol=0.2, rtol=0.1
    )


def test_the_newest_parts_and_domains_are_kept():
    store = Store(LAYOUT, Rules(domains=2, parts=3))
    for device in range(5):
        one(store, device, 11, device + 1, part(0.0))
    assert sorted(store.device[store.name != 0].tolist()) == [2, 3, 4]
    one(store, 0, 11, 1, part(0.0))  # too old
    assert sorted(store.device[store.name != 0].tolist()) == [2, 3, 4]
    one(store, 7, 22, 10, part(9.0))
    one(store, 8, 33, 11, part(18.0))
    assert sorted(store.headings.tolist()) == [22, 33]


def test_only_what_has_changed_is_handed_out():
    store = Store(LAYOUT, ROOMY, stale=9.0)
    one(store, 0, 11, 1, part(0.0))
    one(store, 1, 22, 51, part(9.0))
    before = store.hand_out_since(5, torch.tensor([11]), 0)
    assert before.which.tolist() == [0, 1]
    one(store, 2, 22, 101, part(9.0, 10.0))
    after = store.hand_out_since(5, torch.tensor([11]), before.tick)
    assert after.which.tolist() == [1]
    assert store.hand_out_since(5, torch.tensor([11]), after.tick).which.tolist() == []
    assert store.hand_out_since(5, torch.tensor([11]), before.tick, news=0.5).which.tolist() == []  # 10 of 60 images
    book = store.hand_out(5, torch.tensor([11])).book
    torch.testing.assert_close(book[1], after.rows[0])
    torch.testing.assert_close(book[0], before.rows[0] * 2 ** -((101 - before.time) / 50))  # it has faded


def test_what_a_device_sent_can_be_taken_out_again():
    store, without = Store(LAYOUT, ROOMY), Store(LAYOUT, ROOMY)
    for device in range(4):
        one(store, device, 11, 5, part(0.0, moment=float(device)))
        if device:
            one(without, device, 11, 5, part(0.0, moment=float(device)))
    store.withdraw(0)
    without.refresh()
    torch.testing.assert_close(store.hand_out(9, torch.tensor([11])).book, without.hand_out(9, torch.tensor([11])).book)


def test_memory_does_not_grow_with_devices():
    store = Store(LAYOUT, Rules(domains=2, parts=3))
    before = store.nbytes
    for device in range(50):
        one(store, device, 11, device + 1, part(0.0))
    assert store.nbytes == before
    assert sum(len(names) for names in store._places.values()) == 3


@given(visits, st.data())
@settings(deadline=None, max_examples=20)
def test_devices_receive_from_two_regions_and_a_root_what_one_server_gives(sent, data):
    """Each exchange goes to any region; the root holds the parts of both and hands them to whoever asks."""
    from fedctta.books.library import merge

    latest = {device: time for device, _, time in sorted(sent, key=lambda visit: visit[2])}
    sent = [(device, list(range(1, 5)), time) for device, _, time in sent if time <= latest[device]]
    single, regions = Store(LAYOUT, ROOMY), (Store(LAYOUT, ROOMY), Store(LAYOUT, ROOMY))
    for visit in sent:
        single.receive(*tell(*visit))
        data.draw(st.sampled_from(regions)).receive(*tell(*visit))
    root = Store(LAYOUT, ROOMY)
    root.load(arrange(merge(*(region.shelf() for region in regions)), LAYOUT, ROOMY))
    single.refresh()
    for device in range(6):
        names = torch.tensor([100, 101, 200, 301])
        one_gives, root_gives = single.hand_out(device, names), root.hand_out(device, names)
        torch.testing.assert_close(root_gives.book, one_gives.book, atol=1e-2, rtol=1e-4)
        assert root_gives.heading.tolist() == one_gives.heading.tolist()
        assert root_gives.place.tolist() == one_gives.place.tolist()


@given(visits)
@settings(deadline=None, max_examples=25)
def test_known_names_need_no_arranging(sent):
    """Parts under known names change the sums of their domains as in the library, exchange by exchange."""
    everybody = [(device, [1, 2, 3, 4], 1) for device in range(6)]
    store = Store(LAYOUT, ROOMY, stale=0)
    shelf = play(store, Shelf.empty(LAYOUT.width), everybody)
    store.refresh()
    for device, domains, time in sent:
        visit = tell(device, sorted({*domains, 1, 2, 3, 4}), time)
        store.receive(*visit)
        who = torch.full_like(visit[1], device)
        shelf = receive(shelf, who, *visit[1:], torch.tensor([device]))
        agree(store, shelf)


@given(visits)
@settings(deadline=None, max_examples=25)
def test_where_there_is_no_majority_sums_are_never_late(sent):
    store = Store(LAYOUT, ROOMY, stale=100.0)
    shelf = play(store, Shelf.empty(LAYOUT.width), [(device, [1, 2, 3], 1) for device in (0, 1)])
    store.refresh()
    for device, _, time in sent:
        visit = tell(device % 2, [1, 2, 3], time)
        store.receive(*visit)
        shelf = receive(shelf, torch.full_like(visit[1], device % 2), *visit[1:], torch.tensor([device % 2]))
        agree(store, shelf)
