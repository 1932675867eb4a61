from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.recall import Recall
from fedctta.fleet.device import request_handler as desk_module
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.transport.wire import Parcel

STEP = {"ask": 1, "lockstep": 0, "run": "r", "nonce": "n", "aggregator": "fedavg", "parameters": "{}"}


@pytest.fixture
def handover(tiny_network):
    return Handover(Snapshot(BatchStatistics().init(tiny_network), torch.rand(4, 3, 8, 8), 5))


@pytest.fixture
def make(tiny_network, handover):
    def made(**options):
        return RequestHandler("d", tiny_network, BatchStatistics(), handover, spare=lambda: tiny_network, **options)

    return made


def own(handover, value=0.5):
    return {f"own.{n}": np.full(t.shape, value, np.float32) for n, t in handover.moment.client.own.items()}


def test_hello_tells_who_and_what(make, tiny_network):
    reply = make(facts={"model": "tiny"}).answer(Parcel("hello", 0, {"run": "r"}))
    assert (reply.kind, reply.note["device"], reply.note["adapter"], reply.note["model"]) == (
        "hello",
        "d",
        "bn",
        "tiny",
    )
    table = json.loads(reply.note["tensors"])
    assert table == {n: ["float32", list(t.shape)] for n, t in tiny_network.statistics.items()}


def test_every_answer_tells_how_the_device_fares(make):
    reply = make(health=lambda: {"health.alarms": 1}).answer(Parcel("step", 7, STEP))
    assert (reply.kind, reply.note["health.alarms"]) == ("upload", 1)
    idle = make(health=lambda: {"health.alarms": 1}).answer(Parcel("step", 7, {**STEP, "ask": 0}))
    assert (idle.kind, idle.note["health.alarms"]) == ("nothing", 1)


def test_hello_with_an_aggregator_tells_what_travels_with_it(make):
    reply = make().answer(Parcel("hello", 0, {"aggregator": "fedbn"}))
    assert json.loads(reply.note["tensors"]) == {}


def test_without_an_aggregator_all_that_a_client_owns_travels_and_no_signal(make):
    told = {key: value for key, value in STEP.items() if key not in ("aggregator", "parameters")}
    plain, averaged = (make().answer(Parcel("step", 7, note)) for note in (told, STEP))
    assert plain.arrays.keys() == averaged.arrays.keys()
    assert plain.arrays


def test_an_upload_repeats_round_run_and_nonce_and_carries_signals(make, handover):
    reply = make().answer(Parcel("step", 7, {**STEP, "aggregator": "fedtsa"}))
    assert (reply.kind, reply.round, reply.note["nonce"], reply.note["run"]) == ("upload", 7, "n", "r")
    assert reply.note["batches"] == 5
    assert reply.note["images"] == 4
    assert {n.partition(".")[0] for n in reply.arrays} == {"own", "signal"}
    assert "signal.indicator" in reply.arrays
    for name, tensor in handover.moment.client.own.items():
        np.testing.assert_array_equal(reply.arrays[f"own.{name}"], tensor)


def test_a_download_is_left_for_the_loop_once(make, handover):
    desk = make()
    request = Parcel("step", 3, {**STEP, "download": 2}, own(handover))
    reply = desk.answer(request)
    assert reply.kind == "upload"
    assert reply.note["received"] == 1
    taken = handover.take()
    assert (taken.run, taken.round) == ("r", 2)
    assert all((t == 0.5).all() for t in taken.own.values())
    assert desk.answer(request).note["received"] == 1  # the reply was lost, and it is sent again
    assert handover.take() is None
    desk.answer(Parcel("step", 1, {**STEP, "run": "another", "download": 0}, own(handover)))
    assert handover.take().run == "another"


def test_a_download_from_before_a_restart_is_not_taken_again(make, handover):
    make(last=("r", 2)).answer(Parcel("step", 3, {**STEP, "download": 2}, own(handover)))
    assert handover.take() is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda a: {**a, "own.more": np.zeros(1, np.float32)}, "does not own"),
        (lambda a: {**a, "signal.x": np.zeros(1, np.float32)}, "no tensor of the client's own"),
        (lambda a: {n: v[:-1] for n, v in a.items()}, "not float32"),
        (lambda a: {n: v.astype(np.float16) for n, v in a.items()}, "is float16"),
        (lambda a: {n: v * np.nan for n, v in a.items()}, "not finite"),
        (lambda a: {n: -v for n, v in a.items()}, "variance"),
        (lambda a: {n: v * 1e6 for n, v in a.items()}, "has norm"),
    ],
)
def test_a_bad_download_is_refused(make, handover, spoil, said):
    reply = make().answer(Parcel("step", 3, STEP, spoil(own(handover))))
    assert reply.kind == "refused"
    assert said in reply.note["reason"]
    assert handover.take() is None


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"aggregator": "fedavgg"}, "did you mean fedavg"),
        ({"parameters": "{"}, "not JSON"),
        ({"parameters": "[]"}, "not a table"),
        ({"parameters": '{"nonsense": 1}'}, "no parameters"),
        ({"lockstep": 1}, "start both with --lockstep"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(make, note, said):
    reply = make().answer(Parcel("step", 3, {**STEP, **note}))
    assert reply.kind == "refused"
    assert said in reply.note["reason"]


def test_what_a_device_does_not_serve_is_refused(make):
    assert make().answer(Parcel("upload")).kind == "refused"


def test_small_batches_and_no_batch_are_not_shared(make, handover):
    assert make(min_batch=4).answer(Parcel("step", 1, STEP)).kind == "upload"
    assert "too small" in make(min_batch=5).answer(Parcel("step", 1, STEP)).note["reason"]
    for asked, kind in (
        (4, "upload"),
        (5, "nothing"),
        ("many", "upload"),
    ):
        assert make(min_batch=3).answer(Parcel("step", 1, {**STEP, "min_batch": asked})).kind == kind
    assert make(min_batch=5).answer(Parcel("step", 1, {**STEP, "min_batch": 1})).kind == "nothing"
    handover.publish(handover.moment._replace(x=None))
    assert make().answer(Parcel("step", 1, STEP)).kind == "nothing"


def test_nothing_asked_nothing_said(make, handover):
    reply = make().answer(Parcel("step", 1, {**STEP, "ask": 0}, own(handover)))
    assert (reply.kind, reply.note["received"]) == ("nothing", 1)
    assert handover.take() is not None
    handover.end()
    assert "ended" in make().answer(Parcel("step", 1, STEP)).note["reason"]


def test_lockstep_waits_for_the_next_batch(make, handover, monkeypatch):
    desk = make(lockstep=True)
    note = {**STEP, "lockstep": 1}
    assert desk.answer(Parcel("step", 0, note)).note["batches"] == 5  # the first question brings no answer

    def loop():
        assert handover.wait_for_download(lambda: False) is not None
        handover.publish(handover.moment._replace(batches=6))

    thread = threading.Thread(target=loop)
    thread.start()
    assert desk.answer(Parcel("step", 1, note, own(handover))).note["batches"] == 6
    thread.join()
    monkeypatch.setattr(desk_module, "LOCKSTEP_WAIT", 0.01)
    reply = desk.answer(Parcel("step", 2, note, own(handover)))
    assert (reply.kind, reply.note["received"]) == ("nothing", 1)
    assert "still at work" in reply.note["reason"]


@pytest.mark.parametrize("aggregator", ["fedtsa", "fedavg", ""])
def test_a_device_with_noise_serves_no_other_aggregator(tiny_network, aggregator):
    """A server may ask for any signal: noise covers those of one aggregator."""
    adapter = Recall(domains=4).with_noise(1.0)
    handover = Handover(Snapshot(adapter.init(tiny_network), torch.rand(4, 3, 8, 8), 5))
    handler = RequestHandler("d", tiny_network, adapter, handover, spare=lambda: tiny_network)
    note = {**STEP, "aggregator": aggregator} if aggregator else {key: STEP[key] for key in ("ask", "lockstep")}
    reply = handler.answer(Parcel("step", 7, note))
    assert (reply.kind, reply.arrays) == ("refused", {})
    assert "covers aggregator 'recall' only" in reply.note["reason"]
    assert handler.answer(Parcel("step", 7, {**STEP, "aggregator": "recall"})).kind == "upload"


def test_a_book_that_is_not_whole_is_refused(tiny_network):
    adapter = Recall(domains=4)
    client = adapter.init(tiny_network)
    handler = RequestHandler(
        "d", tiny_network, adapter, Handover(Snapshot(client, torch.rand(4, 3, 8, 8), 5)), spare=lambda: tiny_network
    )
    names = ("book", "heading", "place", "asked", "received")
    whole = {f"own.{name}": client.private[name].numpy() for name in names}
    note = {**STEP, "aggregator": "recall"}
    for name in names:
        some = {key: array for key, array in whole.items() if key != f"own.{name}"}
        reply = handler.answer(Parcel("step", 7, note, some))
        assert (reply.kind, reply.note["reason"]) == (
            "refused",
            f"the download lacks {name!r}, which goes with the rest",
        )
    assert handler.answer(Parcel("step", 7, note, whole)).note["received"] == 1


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"weights": "0" * 32}, "other weights"),
        ({"adapter_parameters": '{"momentum": 0.3}'}, "the device has bn.momentum=1.0, the server bn.momentum=0.3"),
    ],
)
def test_with_every_question_both_sides_learn_what_the_other_has(make, handover, other, said):
    desk = make()
    same = desk.answer(Parcel("step", 3, {**STEP, **desk.terms}, own(handover)))
    assert (same.kind, handover.take().round) == ("upload", 2)
    assert desk.terms.items() <= same.note.items()
    reply = desk.answer(Parcel("step", 4, {**STEP, **desk.terms, **other}, own(handover)))
    assert (reply.kind, handover.take()) == ("refused", None)
    assert said in reply.note["reason"]
    assert desk.terms.items() <= reply.note.items()
