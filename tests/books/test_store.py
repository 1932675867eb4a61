"""The server's book, exchange by exchange."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.books.counting import add_up
from fedctta.books.editions import take_up
from fedctta.books.library import (
    Lists,
    Rules,
    Shelf,
    arrange,
    find_time,
    merge,
    receive,
    sum_domains,
    to_tensors,
    withdraw,
)
from fedctta.books.rows import WEIGHTS, Layout
from fedctta.books.store import Letter, Store
from fedctta.core.appearance import NUMBERS

LAYOUT, RULES = Layout(2), Rules(domains=16, parts=16, half_life=20, few=15)
NOTHING = torch.zeros(0, dtype=torch.int64)


def make_row(look, images, moment=0.0):
    """A part that can be true."""
    n, f = torch.tensor([float(images)]), torch.full((NUMBERS,), float(look))
    wide = f.square() + torch.tensor([0.5, 1.5] * (NUMBERS // 2))  # a variance about 1
    moments = torch.tensor([moment, -moment, moment**2, moment**2 + 1])
    sums = {"look": f, "square": wide, "doubt": torch.ones(len(WEIGHTS)), "moments": moments}
    counts = dict.fromkeys(("images", "scored", "measured"), n)
    return LAYOUT.row(n, **counts, **{name: n * means for name, means in sums.items()})


def write(device, time, names, held=NOTHING, looks=3):
    """A device's whole list, {name: version}, with all rows: what name n looks like is n modulo `looks`."""
    rows = [make_row(9.0 * (n % looks), 3 + device + v / 2, 0.1 * device + 0.05 * v) for n, v in names.items()]
    rows = torch.stack(rows) if rows else torch.zeros(0, LAYOUT.width)
    name, changed = (torch.tensor(list(each), dtype=torch.int64) for each in (names, names.values()))
    return Letter(device, 100 * time, name, 100 * changed, torch.arange(len(name)), rows, held)


def keep(shelf, letter):
    """What the library makes of a letter."""
    lists = Lists(torch.tensor([letter.device]), torch.tensor([letter.time]))
    return receive(shelf, torch.full_like(letter.name, letter.device), letter.name, letter.changed, letter.rows, lists)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def check(store, shelf):
    """A refreshed store holds and hands out what the library makes of the same parts."""
    store.refresh()
    shelf = arrange(
        shelf._replace(time=find_time(shelf), domain=torch.full_like(shelf.domain, -1)), LAYOUT, store.rules
    )
    assert same(store.shelf(), shelf if len(shelf.name) else shelf._replace(time=torch.tensor(0)))
    answer = store.exchange(write(999, 0, {}))
    book, _ = take_up(torch.zeros(store.rules.domains, LAYOUT.width), torch.zeros(store.rules.domains), 1.0, answer)
    expected = sum_domains(shelf, add_up(shelf, LAYOUT, store.rules), store.rules.domains)
    torch.testing.assert_close(book, expected, rtol=1e-4, atol=1e-3)
    store.withdraw(999)


lists = st.dictionaries(st.integers(1, 12), st.integers(1, 9), max_size=4)
deeds = st.lists(
    st.one_of(st.tuples(st.integers(0, 5), st.integers(9, 12), lists), st.tuples(st.integers(0, 5))), max_size=12
)


@given(deeds)
@settings(deadline=None, max_examples=30)
def test_after_a_refresh_it_is_what_the_library_makes_of_the_same_parts(done):
    """Letters in any order, late and repeated, with names that come and go; now and then a device is taken out."""
    store, shelf = Store(LAYOUT, RULES), Shelf.empty(LAYOUT.width)
    for device, *told in done:
        if not told:
            store.withdraw(device)
            shelf = withdraw(shelf, device)
            continue
        letter = write(device, *told)
        assert store.exchange(letter) is not None
        shelf = keep(shelf, letter)
    check(store, shelf)


def test_parts_and_domains_without_room_are_those_of_the_library():
    rules = Rules(domains=3, parts=2, alone=1)
    store, shelf = Store(LAYOUT, rules), Shelf.empty(LAYOUT.width)
    for device in range(6):
        letter = write(device, 9, {1 + k: 1 + (device + 2 * k) % 7 for k in range(3 if device < 5 else 5)}, looks=9)
        store.exchange(letter)
        shelf = arrange(keep(shelf, letter), LAYOUT, rules)
    check(store, shelf)
    assert len(store.shelf().name) <= 6


def test_regional_stores_and_a_root_are_one_store():
    one, regions = Store(LAYOUT, RULES), [Store(LAYOUT, RULES, region) for region in (1, 2)]
    sent = [(0, 2, {1: 1, 2: 2}), (1, 2, {4: 2}), (0, 3, {1: 3}), (2, 3, {5: 3, 3: 2}), (1, 4, {7: 2}), (0, 5, {10: 4})]
    for k, each in enumerate(sent):  # device 0 goes from the first region to the second and back, with other names
        for store in (one, regions[k % 2]):
            store.exchange(write(*each))
    root = Store.from_tensors(LAYOUT, RULES, to_tensors(merge(*(store.shelf() for store in regions))))
    one.refresh()
    assert same(root.shelf(), one.shelf())
    assert sorted(root.shelf().name.tolist()) == [3, 5, 7, 10]


def test_a_device_is_sent_what_is_new_to_it():
    store = Store(LAYOUT, RULES)
    for device in range(4):
        store.exchange(write(device, 2, {1: 1, 2: 2}))
    first = store.exchange(write(9, 2, {1: 2}))
    assert sorted(first.heading[first.which].tolist()) == [1, 2]
    again = store.exchange(write(9, 3, {1: 2}, first.edition))
    assert len(again.which) == 0
    store.exchange(write(5, 3, {2: 3, 3: 3}))
    last = store.exchange(write(9, 4, {1: 2}, again.edition))
    assert sorted(last.heading[last.which].tolist()) == [2, 3]
    assert last.place.tolist() == first.place.tolist()


def test_editions_of_two_servers_are_not_taken_for_each_other():
    answers = [Store(LAYOUT, RULES, region).exchange(write(0, 2, {1: 1})) for region in (0, 1)]
    assert answers[0].edition[0] != answers[1].edition[0]


def test_the_own_part_is_not_in_the_answer_not_even_an_old_one():
    store = Store(LAYOUT, RULES)
    for device in range(10):
        store.exchange(write(device, 2, {1: 2}))
    full = LAYOUT.of(store.exchange(write(99, 2, {})).rows, "images")[0]
    store._domains[0].add_up = None  # what comes now is not counted
    own = write(3, 3, {1: 3})
    less = LAYOUT.of(store.exchange(own).rows, "images")[0]
    assert full - less == torch.tensor(3 + 3 + 1.0)


def test_a_name_without_room_for_its_part_still_finds_its_domain():
    store = Store(LAYOUT, Rules(domains=2, parts=1))
    store.exchange(write(0, 9, {1: 9, 2: 9}))
    answer = store.exchange(write(1, 2, {4: 1}))
    assert answer.heading[answer.place].tolist() == [1]
    assert store.shelf().device.tolist() == [0, 0]


def test_a_device_learns_what_need_not_be_sent():
    store = Store(LAYOUT, Rules(domains=2, parts=2))
    for device in range(2):
        store.exchange(write(device, 9, {1: 5 + device}))
    needless = store.list_needless(0)
    assert list(zip(needless["name"].tolist(), needless["version"].tolist(), strict=True)) == [(1, 499), (1, 500)]
    assert store.list_needless(7)["version"].tolist() == [499]


def test_what_cannot_be_true_is_refused_and_changes_nothing():
    store = Store(LAYOUT, RULES)
    store.exchange(write(0, 2, {1: 1, 2: 2}))
    before = store.shelf()
    good = write(0, 3, {1: 3, 2: 2})
    bad = [
        good._replace(rows=-good.rows),
        good._replace(time=250),  # a version of the future
        good._replace(name=torch.tensor([1, 1])),
        good._replace(name=torch.tensor([1, 0])),
        good._replace(
            which=torch.tensor([0]), rows=make_row(9.0, 302)[None]
        ),  # with the other part: more than its time
    ]
    assert [store.exchange(letter) for letter in bad] == [None] * len(bad)
    assert store.refused == len(bad)
    assert same(store.shelf(), before)


def test_all_is_arranged_again_after_some_turnovers(monkeypatch):
    monkeypatch.setattr("fedctta.books.store.TURNOVERS", 2)
    store, count = Store(LAYOUT, Rules(domains=1, parts=2)), []
    monkeypatch.setattr(store, "refresh", lambda: count.append(1) or Store.refresh(store))
    for time in range(2, 12):
        store.exchange(write(0, time, {1: time}))
    assert len(count) == 2


def test_devices_go_on_with_names_and_editions_after_a_refresh():
    """A heading stays the name of its domain, though nobody who has used it is there any more."""
    store = Store(LAYOUT, RULES)
    for device in range(4):
        store.exchange(write(device, 2, {7 + 3 * device: 1, 8 + 3 * device: 2}))
    store.exchange(write(0, 3, {16: 3}))
    before = store.exchange(write(9, 2, {}))
    store.refresh()
    after = store.exchange(write(9, 2, {}, before.edition))
    assert (
        {7, 8} == set(before.heading[before.heading != 0].tolist()) == set(after.heading[after.heading != 0].tolist())
    )
    assert len(after.which) == 0
    assert after.heading[store.exchange(write(8, 3, {7: 3}, looks=1)).place].tolist() == [7]


def test_it_goes_on_after_a_restart():
    store = Store(LAYOUT, RULES, region=3)
    for device in range(4):
        store.exchange(write(device, 2, {1: 1, 2: 2}))
    other = Store.from_tensors(LAYOUT, RULES, store.to_tensors())
    assert same(other.shelf(), store.shelf())
    held = store.exchange(write(9, 2, {})).edition
    assert not set(other.exchange(write(9, 2, {})).edition.tolist()) & set(held[held != 0].tolist())


def test_a_device_that_invents_domains_takes_few_places():
    store = Store(LAYOUT, Rules(domains=6, parts=4, alone=2))
    for device in range(3):
        store.exchange(write(device, 9, dict.fromkeys(range(1, 6), 5), looks=40))
    store.exchange(write(9, 9, dict.fromkeys(range(11, 23), 9), looks=40))
    names = set(store.shelf().name.tolist())
    assert len(names & set(range(1, 6))) == 4  # one place was free
    assert len(names & set(range(11, 23))) == 2
