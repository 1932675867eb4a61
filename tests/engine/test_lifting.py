"""Measured once, remembered, and only where it pays."""

from __future__ import annotations

import json

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.clients import by_loop, choose_lift
from fedctta.engine import lifting
from fedctta.engine.lifting import LONG, candidates, fastest_lift


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    return tmp_path


def choose(network, images=LONG, adapter="bn"):
    return fastest_lift(adapters.create(adapter), network, clients=12, batch=10, shape=(3, 8, 8), images=images)


def test_candidates_differ():
    assert [*candidates(12, 10)] == ["5 at once", "10 at once", "12 at once", "loop"]
    assert [*candidates(1, 200)] == ["1 at once", "loop"]


def test_the_fastest_is_taken_and_remembered(tiny_network, home, monkeypatch):
    slow = {"5 at once": 3.0, "10 at once": 2.0, "12 at once": 4.0, "loop": 1.0}
    times = iter(slow.values())
    monkeypatch.setattr(lifting, "REPEATS", 1)
    monkeypatch.setattr(lifting, "_time", lambda work, clock: next(times))
    assert choose(tiny_network) is by_loop
    assert [*json.loads((home / lifting.FILE).read_text()).values()] == ["loop"]
    assert choose(tiny_network) is by_loop  # though nothing is left to measure
    with pytest.raises(RuntimeError, match="StopIteration"):
        choose(tiny_network, adapter="tent")


def test_what_cannot_be_read_is_measured_again(tiny_network, home, monkeypatch):
    (home / lifting.FILE).write_text("{half")
    monkeypatch.setattr(lifting, "_measure", lambda *arguments: "loop")
    assert choose(tiny_network) is by_loop
    assert json.loads((home / lifting.FILE).read_text())


def test_what_others_measured_meanwhile_is_kept(tiny_network, home, monkeypatch):
    def measure(*arguments):
        (home / lifting.FILE).write_text(json.dumps({"another": "5 at once"}))
        return "loop"

    monkeypatch.setattr(lifting, "_measure", measure)
    choose(tiny_network)
    assert sorted(json.loads((home / lifting.FILE).read_text()).values()) == ["5 at once", "loop"]


def test_a_short_run_takes_the_usual_choice(tiny_network, home):
    usual = choose_lift("auto", tiny_network, adapters.create("bn").init(tiny_network), 10)
    assert choose(tiny_network, LONG - 1).__name__ == usual.__name__
    assert not (home / lifting.FILE).exists()


def test_trials_are_of_few_clients(tiny_network, home, monkeypatch):
    shown = []
    monkeypatch.setattr(lifting, "_measure", lambda tried, a, network, count, *_: shown.append(count) or "loop")
    fastest_lift(adapters.create("tent"), tiny_network, 2000, 10, (3, 8, 8), LONG)
    assert shown == [lifting.MOST]


@pytest.mark.parametrize("adapter", ["bn", "grad", "cotta"])
def test_every_lifting_is_really_tried(adapter, tiny_network, home, monkeypatch):
    names = []
    monkeypatch.setattr(lifting, "_time", lambda work, clock: names.append(work()) or 1.0)
    assert choose(tiny_network, adapter=adapter).__name__ == "by_vmap_5_clients_at_a_time"
    assert len(names) == 4 * lifting.REPEATS
    for logits in names:
        torch.testing.assert_close(logits, names[0], atol=1e-4, rtol=1e-4)
