"""Rows belong to names, names to nodes for as long as these are there, and too many refusals have a price."""

from __future__ import annotations

from fedctta.fleet.server.roster import Roster


def test_rows_follow_names_and_stay():
    roster = Roster(room=3)
    assert roster.admit({7: "b", 5: "c"}, [5, 7]) == {}
    assert roster.names == ["b", "c"]
    roster.admit({1: "a"}, [1, 5, 7])
    assert (roster.names, roster.nodes) == (["b", "c", "a"], {7: 0, 5: 1, 1: 2})


def test_a_name_moves_only_when_its_node_has_left():
    roster = Roster(room=3)
    roster.admit({7: "b"}, [7])
    assert "already speaks through node 7" in str(roster.admit({8: "b"}, [7, 8])[8])
    assert roster.nodes == {7: 0}
    assert roster.admit({8: "b"}, [8]) == {}
    assert (roster.names, roster.nodes) == (["b"], {8: 0})


def test_two_nodes_with_one_name_at_once():
    roster = Roster(room=3)
    assert list(roster.admit({7: "b", 8: "b"}, [7, 8])) == [8]


def test_there_is_room_for_so_many():
    roster = Roster(room=1)
    assert "all 1 places" in str(roster.admit({1: "a", 2: "b"}, [1, 2])[2])
    assert roster.admit({3: "a"}, [3]) == {}


def test_quarantine_after_refusals_in_a_row():
    roster = Roster(room=1, quarantine=2, quarantine_rounds=3)
    assert not roster.refuse("a", 0)
    roster.accept("a")
    assert not roster.refuse("a", 2)
    assert roster.refuse("a", 3)
    assert [roster.ignored("a", t) for t in range(3, 8)] == [True, True, True, True, False]
    assert not roster.refuse("a", 7)
    assert roster.refused["a"] == 4
