from __future__ import annotations

import torch

from fedctta.books.library import Lists, Rules, Shelf, receive
from fedctta.books.versions import leave_out, list_versions, put_back

K, WIDTH = 4, 120
ROOMY, FULL = Rules(domains=4, parts=2), Rules(domains=4, parts=1)


def make_signals(names=(5, 0, 7, 9), changed=(10, 0, 20, 30)):
    part = torch.rand(K, WIDTH, generator=torch.Generator().manual_seed(0)) + 1
    part[torch.tensor(names) == 0] = 0
    return {"part": part, "name": torch.tensor(names), "changed": torch.tensor(changed)}


def make_shelf(signals, device=2):
    sent = (signals["name"] != 0).nonzero().squeeze(1)
    who = torch.full_like(sent, device)
    parts = (signals[key][sent] for key in ("name", "changed", "part"))
    shelf = receive(Shelf.empty(WIDTH), who, *parts, Lists(who[:1], signals["changed"].max()[None]))
    return shelf._replace(domain=torch.arange(len(sent)))


def test_what_the_server_has_is_left_out_and_put_back():
    signals = make_signals()
    shelf = make_shelf(signals)
    known = list_versions(shelf, 2, ROOMY)
    assert sorted(known["name"].tolist()) == [5, 7, 9]
    sent = leave_out(signals, known)
    assert not sent["part"].any()
    assert torch.equal(put_back(sent, shelf, 2)["part"], signals["part"])


def test_what_has_changed_is_sent():
    shelf, now = make_shelf(make_signals()), make_signals(changed=(10, 0, 21, 30))
    sent = leave_out(now, list_versions(shelf, 2, ROOMY))
    assert sent["part"].any(1).tolist() == [False, False, True, False]
    assert torch.equal(put_back(sent, shelf, 2)["part"], now["part"])


def test_parts_of_others_are_not_ones_own():
    signals = make_signals()
    shelf = make_shelf(signals, device=1)
    known = list_versions(shelf, 2, ROOMY)
    assert len(known["name"]) == 0
    assert torch.equal(leave_out(signals, known)["part"], signals["part"])
    nothing = {**signals, "part": torch.zeros(K, WIDTH)}
    assert not put_back(nothing, shelf, 2)["part"].any()


def test_a_part_that_the_server_has_lost_meanwhile_stays_out():
    signals = make_signals()
    sent = leave_out(signals, list_versions(make_shelf(signals), 2, ROOMY))
    assert not put_back(sent, Shelf.empty(WIDTH), 2)["part"].any()


def test_what_would_find_no_room_is_left_out():
    """Device 1 fills the domains 5, 7 and 9; what device 2 has of them is sent only if it is as new."""
    shelf, now = make_shelf(make_signals(), device=1), make_signals(changed=(9, 0, 20, 31))
    sent = leave_out(now, list_versions(shelf, 2, FULL))
    assert sent["part"].any(1).tolist() == [False, False, True, True]
    assert leave_out(now, list_versions(shelf, 2, ROOMY))["part"].any(1).tolist() == [True, False, True, True]


def test_a_domain_with_two_parts_of_one_device_has_room_for_another_device():
    shelf = make_shelf(make_signals(), device=1)
    crowded = shelf._replace(domain=torch.zeros_like(shelf.domain))
    assert len(list_versions(crowded, 2, Rules(domains=4, parts=3))["name"]) == 0
