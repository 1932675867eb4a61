"""Budget, estimates and ratios, with times that are made up."""

from __future__ import annotations

import math
from time import perf_counter, process_time

import pytest
import torch

from fedctta.bench import measure as measuring
from fedctta.bench.cells import Cell, make_plan
from fedctta.bench.measure import (
    Known,
    Row,
    Skipped,
    Timing,
    choose_clock,
    estimate,
    measure,
    refuse_impossible,
    run,
    take_turn,
)
from fedctta.errors import UserError


def plan(**options):
    return make_plan(device="cpu", models="resnet8-w16", adapters="bn", aggregators="fedavg", **options)


class FakeMachine:
    """Takes so many seconds a client and round, on a clock of its own."""

    def __init__(self, monkeypatch, **per_client):
        self.now, self.per_client, self.taken = 0.0, per_client, []
        monkeypatch.setattr(measuring, "perf_counter", lambda: self.now)

    def take(self, cell, way, rounds, plan):
        spent = self.per_client[way] * cell.clients
        self.now += (rounds + 1) * spent
        self.taken.append((way, cell.clients, rounds))
        return Timing((spent,) * rounds, 1.0)


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(measuring, "shortage", lambda *_: None)
    return lambda **per_client: FakeMachine(monkeypatch, **per_client)


def measured(machine, chosen, ways):
    return measure(chosen.cells[0], chosen, {way: Known() for way in ways}, machine.take)


def test_ways_take_turns_until_all_rounds_are_done(fake):
    machine = fake(a=1e-3, b=2e-3)
    row = measured(machine, plan(clients="20", ways="a,b", rounds=7), "ab")
    turns = [(way, rounds) for way, clients, rounds in machine.taken if clients == 20]
    assert turns == [("a", 3), ("b", 3), ("a", 3), ("b", 3), ("a", 1), ("b", 1)]
    assert len(row.timing("b").seconds) == 7
    assert row.ratio("b", "a") == pytest.approx(2)
    assert row.images_per_second("a") == pytest.approx(20 * 10 / 0.02)


def test_time_that_runs_out_leaves_three_rounds(fake):
    machine = fake(a=0.01, b=0.02)
    row = measured(machine, plan(clients="20", ways="a,b", rounds=30, seconds=3), "ab")
    assert len(row.timing("a").seconds) == len(row.timing("b").seconds) == 3


def test_a_way_that_would_not_fit_is_skipped_and_says_so(fake):
    machine = fake(a=0.01, b=0.02, d=5.0)
    row = measured(machine, plan(clients="20", ways="a,b,d", seconds=10), "abd")
    assert isinstance(row.found["d"], Skipped)
    assert "3 rounds would take about 400 s" in row.found["d"].reason
    assert ("d", 20, 3) not in machine.taken
    assert row.timing("b") is not None
    assert math.isnan(row.ratio("d", "b"))


def test_no_more_clients_are_tried_than_there_is_time_for(fake):
    machine = fake(d=1.0)
    row = measured(machine, plan(clients="2000", ways="d", seconds=60), "d")
    assert [clients for _, clients, _ in machine.taken] == [2, 20]
    assert isinstance(row.found["d"], Skipped)


def test_larger_cells_are_estimated_by_smaller_ones(fake, monkeypatch):
    machine = fake(b=1e-3)
    monkeypatch.setattr(measuring, "take_turn", machine.take)
    list(run(plan(clients="20,200", ways="b", rounds=3)))
    assert [clients for _, clients, _ in machine.taken] == [2, 20, 200]


def test_a_guess_follows_the_growth_between_one_and_two():
    known = Known()
    known.seconds = {2: 1.0}
    assert known.guess(20) == pytest.approx(10)
    known.seconds = {2: 1.0, 20: 100.0}
    assert known.guess(200) == pytest.approx(10_000)
    known.seconds = {2: 1.0, 20: 1.0}
    assert known.guess(200) == pytest.approx(10)
    known.seconds = {2: 1.0, 20: 1e6}
    assert known.guess(40) == pytest.approx(4e6)


def test_running_out_of_gpu_memory_ends_a_way_and_not_the_run(monkeypatch):
    def exhausted(work, tick):
        raise torch.OutOfMemoryError("no")

    monkeypatch.setitem(measuring.WAYS, "b", exhausted)
    chosen = plan(clients="2", ways="a,b", rounds=3)
    (row,) = run(chosen)
    assert isinstance(row.found["b"], Skipped)
    assert row.timing("a") is not None
    assert estimate(chosen.cells[0], "b", chosen, Known(), take_turn) == math.inf
    row = measure(chosen.cells[0], chosen, {"a": Known(), "b": Known()})
    assert row.found["b"].reason == "a trial with fewer clients ran out of GPU memory"


def test_a_missing_gigabyte_is_told_before_it_is_tried(monkeypatch, fake):
    machine = fake(a=1e-3, b=1e-3)
    monkeypatch.setattr(measuring, "shortage", lambda cell, way, *_: "needs 9 GB" if way == "b" else None)
    row = measured(machine, plan(clients="4", ways="a,b"), "ab")
    assert row.found["b"] == Skipped("needs 9 GB")
    assert {way for way, *_ in machine.taken} == {"a"}


def test_memory_of_the_cell_before_is_freed_before_it_is_counted(monkeypatch, fake):
    machine, order = fake(a=1e-3), []
    monkeypatch.setattr(measuring, "_let_go", lambda device: order.append("freed"))
    monkeypatch.setattr(measuring, "shortage", lambda *_: order.append("counted"))
    measured(machine, plan(clients="4", ways="a"), "a")
    assert order[:2] == ["freed", "counted"]


def test_a_real_turn_counts_its_rounds_but_not_the_first():
    chosen = plan(clients="2", batch=2, ways="a")
    turn = take_turn(chosen.cells[0], "a", 3, chosen)
    assert len(turn.seconds) == 3
    assert min(turn.seconds) > 0
    assert turn.peak_mb > 0


def test_a_row_knows_what_was_not_asked_for():
    row = Row(Cell("resnet8", "bn", "fedavg", 2, 2), {"a": Timing((1.0, 3.0, 2.0), 5.0)})
    assert row.seconds("a") == 2
    assert math.isnan(row.seconds("b"))


def test_methods_that_do_not_fit_are_skipped_with_the_reason_and_refused_if_there_is_nothing_else():
    chosen = make_plan(device="cpu", quick=True, adapters="bn,recall", aggregators="recall", clients="2", batch=2)
    rows = list(run(chosen))
    assert "use adapter=recall" in rows[0].found["a"].reason
    assert rows[1].timing("b") is not None
    refuse_impossible(chosen)
    with pytest.raises(UserError, match="nothing to measure: aggregator 'recall' shares what"):
        refuse_impossible(make_plan(device="cpu", quick=True, adapters="bn", aggregators="recall"))


def test_loops_are_skipped_where_they_are_not_written(fake):
    machine = fake(a=1e-3, c=1e-3)
    chosen = make_plan(device="cpu", quick=True, adapters="bn", aggregators="fedavg,kin", ways="a,c", clients="4")
    rows = [measure(cell, chosen, {"a": Known(), "c": Known()}, machine.take) for cell in chosen.cells]
    assert rows[0].timing("c") is not None
    assert rows[1].found["c"] == Skipped("it is not written for this method")
    assert rows[1].timing("a") is not None


@pytest.mark.parametrize(
    ("device", "threads", "clock"), [("cpu", 1, process_time), ("cpu", 2, perf_counter), ("cuda", 1, perf_counter)]
)
def test_one_thread_on_a_cpu_is_timed_without_other_processes(device, threads, clock, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert choose_clock(torch.device(device)) is clock
