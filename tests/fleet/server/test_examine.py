"""Everything that does not fit is refused, and says why."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.aggregators import Uploads
from fedctta.core.tensors import named
from fedctta.fleet.server.examine import Examiner, UploadRefused, form_of
from fedctta.fleet.server.plan import build, make_plan
from fedctta.fleet.transport import wire
from fedctta.uploads.robust import plausible

SHARED = {"norm.running_mean": torch.zeros(3), "norm.running_var": torch.ones(3)}
SIGNALS = {"indicator": torch.zeros(5)}
TERMS = {"weights": "ab", "adapter": "bn", "adapter_parameters": "{}", "version": "0.8.0"}
EXAMINER = Examiner(SHARED, SIGNALS, frozenset({"norm.running_var"}), TERMS, limit=10_000)


def upload(**arrays):
    own = {"own.norm.running_mean": np.zeros(3, np.float32), "own.norm.running_var": np.ones(3, np.float32)}
    whole = {**own, "signal.indicator": np.ones(5, np.float32), **{k.replace("__", "."): v for k, v in arrays.items()}}
    return wire.Parcel("upload", 7, {"nonce": "n"}, {k: v for k, v in whole.items() if v is not None})


def hello(**note):
    table = json.dumps({name: form_of(tensor) for name, tensor in SHARED.items()})
    return wire.Parcel("hello", 0, {"device": "d", **TERMS, "tensors": table, **note})


def test_what_fits_is_taken():
    taken = EXAMINER.upload(EXAMINER.open(wire.pack(upload())), 7, "n")
    assert list(taken.own) == list(SHARED)
    assert torch.equal(taken.signals["indicator"], torch.ones(5))
    assert EXAMINER.hello(EXAMINER.open(wire.pack(hello()))) == "d"


@pytest.mark.parametrize(
    ("parcel", "reason"),
    [
        (replace(upload(), kind="hello"), "where 'upload' was asked"),
        (replace(upload(), round=6), "round 6, asked was round 7"),
        (replace(upload(), note={"nonce": "old"}), "answers another one"),
        (replace(upload(), note={}), "answers another one"),
        (upload(own__norm__running_mean=None), "own.norm.running_mean is missing"),
        (upload(signal__indicator=None), "signal.indicator is missing"),
        (upload(own__more=np.zeros(1, np.float32)), "'own.more' is unknown"),
        (upload(own__norm__running_mean=np.zeros(4, np.float32)), r"float32\[4\], not float32\[3\]"),
        (upload(own__norm__running_mean=np.zeros(3, np.float16)), "float16"),
        (upload(own__norm__running_mean=np.float32([0, np.nan, 0])), "not finite"),
        (upload(signal__indicator=np.full(5, np.inf, np.float32)), "not finite"),
        (upload(own__norm__running_var=np.float32([1, -1e-6, 1])), "negative"),
        (upload(own__norm__running_mean=np.full(3, 1e3, np.float32)), "norm"),
        (upload(signal__indicator=np.full(5, 1e30, np.float32)), r"signal\.indicator holds a number beyond 1e\+15"),
    ],
)
def test_uploads_refused(parcel, reason):
    with pytest.raises(UploadRefused, match=reason):
        EXAMINER.upload(EXAMINER.open(wire.pack(parcel)), 7, "n")


@pytest.mark.parametrize("number", [0.0, 62.5, 1e6, 1e14, 1e15, -2e15, 1e25])
def test_a_signal_is_judged_as_in_a_simulation(number):
    """There is no source to compare it with: what an example is like says nothing of a device's own images."""
    signal = torch.full((5,), number)
    own = {name: tensor[None] for name, tensor in SHARED.items()}
    there = plausible(Uploads(own, {"indicator": signal[None]}, torch.ones(1, dtype=torch.bool)), SHARED)
    try:
        EXAMINER.upload(upload(signal__indicator=signal.numpy()), 7, "n")
        taken = True
    except UploadRefused:
        taken = False
    assert taken == bool(there) == (abs(number) <= 1e15)


@pytest.mark.parametrize("batch", [10, 31, 200])
def test_honest_signals_of_batches_of_any_size_are_taken(batch):
    """Kin counts the images of a batch, and its example has two."""
    run = {"dataset": "shapes-c", "adapter": "bn", "aggregator": "kin", "batch": batch}
    hub, examiner = build(make_plan({"max_devices": 2}, run))
    network, adapter = hub.server.network, BatchStatistics()
    x = torch.rand(batch, 3, 32, 32)
    with torch.no_grad():
        client = adapter.adapt(network, adapter.init(network), x)
        tensors = named("own", client.own) | named("signal", hub.aggregator.signal(network, client, x))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    examiner.upload(wire.Parcel("upload", 0, {"nonce": "n", "images": batch}, arrays), 0, "n")


@pytest.mark.parametrize("images", [None, 3, "many", 2.5])
def test_an_upload_of_too_few_images_is_refused(images):
    strict = replace(EXAMINER, min_batch=4)
    note = {"nonce": "n"} if images is None else {"nonce": "n", "images": images}
    with pytest.raises(UploadRefused, match="fewer than min_batch=4"):
        strict.upload(replace(upload(), note=note), 7, "n")
    strict.upload(replace(upload(), note={"nonce": "n", "images": 4}), 7, "n")


@pytest.mark.parametrize(
    ("parcel", "reason"),
    [
        (hello(device=""), "device name"),
        (hello(device="a\nb"), "device name"),
        (hello(device="x" * 101), "device name"),
        (hello(adapter="tent"), "adapter 'tent'"),
        (hello(weights="cd"), "other weights"),
        (hello(weights=7), "does not tell its weights"),
        (hello(adapter_parameters='{"momentum": 1}'), "momentum=1, the server bn.momentum=None"),
        (hello(version="0.7.9"), "fedctta 0.7.9"),
        (hello(tensors="[1]"), "cannot be read"),
        (hello(tensors="{"), "cannot be read"),
        (hello(tensors=json.dumps({"a": ["float32", [1]]})), "'a' is unknown"),
        (hello(tensors=json.dumps({**{n: form_of(t) for n, t in SHARED.items()}, "z": 3})), "cannot be read"),
    ],
)
def test_hellos_refused(parcel, reason):
    with pytest.raises(UploadRefused, match=reason):
        EXAMINER.hello(EXAMINER.open(wire.pack(parcel)))


def test_bytes_refused():
    with pytest.raises(UploadRefused, match="more than the 10000 allowed"):
        EXAMINER.open(np.zeros(10_001, np.uint8))
    for junk in (np.zeros(100, np.uint8), np.zeros(3, np.float32), wire.pack(upload())[:-1]):
        with pytest.raises(UploadRefused):
            EXAMINER.open(junk)


def test_another_schema_is_named():
    flat = wire.pack(upload()).copy()
    flat[len(wire.MAGIC)] = wire.SCHEMA + 1
    with pytest.raises(UploadRefused, match="use the same fedctta version"):
        EXAMINER.open(flat)
