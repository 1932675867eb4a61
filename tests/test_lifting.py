"""Measured once, remembered, and only where it pays."""

from __future__ import annotations

import json

import pytest
import torch

from fedctta import lifting
from fedctta.adapters import adapters
from fedctta.clients import by_loop, choose_lift
from fedctta.lifting import LONG, candidates, fastest_lift


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    return tmp_path


def choose(network, images=LONG, adapter="bn"):
    return fastest_lift(adapters.create(adapter), network, clients=12, batch=10, shape=(3, 8, 8), images=images)


def test_candidates_differ():
    assert [*candidates(torch.device("cpu"), 12, 10)] == ["5 at once", "10 at once", "12 at once", "loop"]
    assert [*candidates(torch.device("cuda"), 20, 10)] == ["20 at once"]
    assert [*candidates(torch.device("cuda"), 1000, 10)] == ["100 at once", "400 at once"]
    assert [*candidates(torch.device("cpu"), 1, 200)] == ["1 at once", "loop"]


def test_the_fastest_is_taken_and_remembered(tiny_network, home, monkeypatch):
    slow = {"5 at once": 3.0, "10 at once": 2.0, "12 at once": 4.0, "loop": 1.0}
    times = iter(slow.values())
    monkeypatch.setattr(lifting, "REPEATS", 1)
    monkeypatch.setattr(lifting, "_time", lambda work, network, clock: next(times))
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


@pytest.mark.parametrize(
    ("kind", "clients", "fit", "expected"),
    [("cpu", 2000, None, 40), ("cuda", 2000, None, 400), ("cuda", 200, None, 200), ("cuda", 2000, 250, 250)],
)
def test_a_trial_on_a_gpu_has_as_many_clients_as_go_through_at_once(
    kind, clients, fit, expected, tiny_network, home, monkeypatch
):
    shown = []

    def measure(tried, adapter, network, count, *_):
        shown.append(count)
        return next(iter(tried))

    monkeypatch.setattr(type(tiny_network), "device", torch.device(kind))
    monkeypatch.setattr(lifting, "hardware", lambda device: "a machine")
    monkeypatch.setattr(lifting, "_measure", measure)
    fastest_lift(adapters.create("tent"), tiny_network, clients, 10, (3, 8, 8), LONG, fit)
    assert shown == [expected]


def test_no_more_clients_are_tried_than_fit(tiny_network, home, monkeypatch):
    tried = []
    monkeypatch.setattr(lifting, "_measure", lambda liftings, *_: tried.extend(liftings) or "loop")
    fastest_lift(adapters.create("bn"), tiny_network, 12, 10, (3, 8, 8), LONG, fit=7)
    assert tried == ["5 at once", "7 at once", "loop"]


@pytest.mark.parametrize("adapter", ["bn", "grad", "cotta"])
def test_every_lifting_is_really_tried(adapter, tiny_network, home, monkeypatch):
    names = []
    monkeypatch.setattr(lifting, "_time", lambda work, network, clock: names.append(work()) or 1.0)
    assert choose(tiny_network, adapter=adapter).__name__ == "by_vmap_5_clients_at_a_time"
    assert len(names) == 4 * lifting.REPEATS
    for logits in names:
        torch.testing.assert_close(logits, names[0], atol=1e-4, rtol=1e-4)
