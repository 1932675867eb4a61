"""The server's book."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedctta.books.counting import add_up
from fedctta.books.library import (
    Lists,
    Rules,
    Shelf,
    arrange,
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
from fedctta.core.appearance import NUMBERS

LAYOUT, RULES, ROOMY = Layout(2), Rules(domains=4, parts=3, few=2000), Rules(domains=16, parts=16)
NOBODY = Lists(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def part(look, images=100.0, moment=0.0):
    """A row of `images` images that all look alike, with one moment."""
    f = torch.full((NUMBERS,), float(look))
    wide = f.square() + torch.tensor([0.5, 1.5] * (NUMBERS // 2))  # a variance about 1
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
    return device, name, version, part(look=4.0 * (name % 5), images=10.0 * version + device, moment=0.1 * version)


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


lives = st.lists(  # of devices: what each does from one upload to the next
    st.lists(st.sampled_from(["see", "rename", "unite", "forget"]), min_size=1, max_size=4), min_size=1, max_size=3
)


def live(device, deeds):
    """The uploads of a device that sees, renames, unites and forgets domains: (device, time, its whole list)."""
    names, uploads, fresh = {1: 1}, [], 10 * (device + 1)
    for time, deed in enumerate(deeds, 2):
        fresh += 1
        if deed == "see" or not names:
            names[fresh if len(names) < 3 else max(names)] = time
        elif deed == "rename":  # the domain stays, and so does the version
            names[fresh] = names.pop(min(names))
        else:
            names.pop(max(names))
            if deed == "unite" and names:
                names[min(names)] = time
        uploads.append((device, time, dict(names)))
    return uploads


def upload(shelf, device, time, names):
    rows = [told(device, name, version)[-1] for name, version in names.items()]
    columns = [torch.tensor(column, dtype=torch.int64) for column in (list(names), list(names.values()))]
    lists = Lists(torch.tensor([device]), torch.tensor([time]))
    rows = torch.stack(rows) if rows else torch.zeros(0, LAYOUT.width)
    return receive(shelf, torch.full_like(columns[0], device), *columns, rows, lists)


def serve(uploads):
    """Receive uploads, and arrange what is there in the end."""
    shelf = Shelf.empty(LAYOUT.width)
    for each in uploads:
        shelf = upload(shelf, *each)
    return shelf


@given(lives, st.data())
@settings(deadline=None, max_examples=60)
def test_devices_may_change_regions_and_rename_and_unite_domains(deeds, data):
    """Every upload reaches one region or both, some twice, in any order; the root holds what one server would."""
    sent = [each for device, life in enumerate(deeds) for each in live(device, life)]
    where = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=len(sent), max_size=len(sent)))
    regions = []
    for region in (0, 1):
        got = [each for each, w in zip(sent, where, strict=True) if w in (region, 2)]
        got += data.draw(st.lists(st.sampled_from(got), max_size=3)) if got else []
        regions.append(serve(data.draw(st.permutations(got))))
    for root in (merge(*regions), merge(*reversed(regions))):
        root = root._replace(domain=torch.full_like(root.domain, -1), time=find_time(root))
        one = serve(sent)
        assert same(arrange(root, LAYOUT, ROOMY), arrange(one._replace(time=find_time(one)), LAYOUT, ROOMY))


def test_a_part_renamed_in_another_region_is_not_counted_twice():
    first, second = (Shelf.empty(LAYOUT.width) for _ in range(2))
    first = upload(first, 0, 1, {11: 1, 12: 1})
    second = upload(second, 0, 2, {11: 2})
    assert merge(first, second).name.tolist() == [11]
    gone = upload(second, 0, 3, {})  # a device that has nothing left
    assert merge(first, gone).name.tolist() == []
    assert merge(gone, first).heard.tolist() == [3]


def test_a_list_that_comes_late_changes_nothing():
    shelf = upload(Shelf.empty(LAYOUT.width), 0, 5, {11: 5, 13: 4})
    assert same(upload(shelf, 0, 2, {11: 1, 12: 2}), shelf)


@given(letters)
@settings(deadline=None, max_examples=20)
def test_what_a_device_sent_can_be_taken_out_again(sent):
    honest = [each for each in sent if each[0] != 0]
    without = withdraw(shelve(*(told(*each) for each in sent), rules=ROOMY), 0)
    expected = shelve(*(told(*each) for each in honest), rules=ROOMY)
    assert same(arrange(without, LAYOUT, ROOMY)[:5], expected[:5])  # but for the time, which goes on


def test_of_a_device_taken_out_nothing_stays():
    shelf = withdraw(upload(upload(Shelf.empty(LAYOUT.width), 0, 9, {11: 9}), 1, 3, {11: 3}), 0)
    assert (shelf.device.tolist(), shelf.known.tolist(), shelf.heard.tolist()) == ([1], [1], [3])
    assert upload(shelf, 0, 2, {11: 2}).version.tolist() == [2, 3]  # it may begin anew


def test_names_of_one_domain_are_found_to_be_one_by_their_looks():
    shelf = shelve((0, 11, 1, part(0.0)), (1, 22, 1, part(0.1)), (2, 33, 1, part(9.0)))
    assert shelf.domain[shelf.name == 11] == shelf.domain[shelf.name == 22] != shelf.domain[shelf.name == 33]
    assert counted(shelf)[2].tolist() == [11, 33, 0, 0]


def test_names_with_few_images_wait_until_more_tell_whether_they_are_one():
    few = shelve((1, 10, 1, part(0.0, images=10.0)), (2, 20, 1, part(0.5, images=10.0)))
    assert few.domain.tolist() == [0, 1]  # by ten images each they might be one
    more = arrange(receive(few, *letter(2, 20, 2, part(0.1, images=300.0)), NOBODY), LAYOUT, RULES)
    assert more.domain.tolist() == [0, 0]


def test_a_device_is_handed_what_all_others_have_seen():
    shelf = shelve((0, 11, 1, part(0.0, 100.0, 1.0)), (1, 22, 1, part(0.0, 50.0, 2.0)))
    rows, sums, headings = counted(shelf)
    names = torch.zeros(3, 4, dtype=torch.int64)
    names[0] = torch.tensor([0, 11, 5, 0])
    book, heading, place, time = hand_out(shelf, rows, sums, headings, names)
    assert LAYOUT.of(book, "images").tolist() == [[50, 0, 0, 0], [100, 0, 0, 0], [150, 0, 0, 0]]  # the last: a stranger
    torch.testing.assert_close(LAYOUT.of(book, "moments")[0, 0], torch.full((4,), 100.0))
    assert place.tolist() == [[-1, 0, -1, -1], [-1] * 4, [-1] * 4]
    assert heading.tolist() == [headings.tolist()] * 3
    assert time.tolist() == [int(shelf.time)] * 3


def test_the_newest_parts_and_domains_are_kept():
    many = shelve(*((device, 11, device + 1, part(0.0)) for device in range(5)))
    assert many.device.tolist() == [2, 3, 4]
    domains = shelve(*((0, 10 + k, k + 1, part(9.0 * k)) for k in range(6)))
    assert domains.name.tolist() == [12, 13, 14, 15]
    assert domains.domain.tolist() == [0, 1, 2, 3]


def test_a_device_that_has_united_two_domains_has_one_name_less():
    shelf = shelve((0, 11, 1, part(0.0)), (0, 12, 1, part(9.0)), (1, 11, 1, part(0.0)))
    after = receive(shelf, *letter(0, 11, 2, part(0.0, 200.0)), Lists(torch.tensor([0]), torch.tensor([2])))
    assert sorted(zip(after.device.tolist(), after.name.tolist(), strict=True)) == [(0, 11), (1, 11)]


def test_two_devices_cannot_move_the_time():
    shelf = shelve(
        *((device, 11, version, part(0.0)) for device, version in enumerate((5, 6, 7, 10**9, 10**9))), rules=ROOMY
    )
    assert find_time(shelf) == 7
    assert find_time(shelve((0, 11, 5, part(0.0)), (1, 11, 8, part(0.0)))) == 8
    assert find_time(Shelf.empty(LAYOUT.width)) == 0
    rows = add_up(shelf._replace(time=find_time(shelf)), LAYOUT, ROOMY)
    assert LAYOUT.of(rows, "images").max() <= 100  # what claims to be of the future does not count more


def test_a_shelf_is_saved_as_tensors():
    shelf = shelve((0, 11, 1, part(0.0)))
    assert same(from_tensors(to_tensors(shelf)), shelf)
