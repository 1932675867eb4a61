"""A finished run: its numbers, and the file that keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from fedctta.errors import UserError
from fedctta.results.records import Record, read_header, to_json

NUMBERS = {"same_domain_weight": 0.75, "bytes_up": 10, "bytes_down": 8, "seconds": 1.5, "peak_memory_mb": 99.0}


def record_of(domain, correct, batch: int = 4) -> Record:
    """Make the record of a run with batches of `batch`."""
    domain, correct = np.asarray(domain, np.int32), np.asarray(correct, np.int32)
    seen = np.where(domain < 0, 0, batch).astype(np.int32)
    clients = domain.shape[1]
    met = np.stack([domain == k for k in range(3)])
    shown, hit = ((met * counts).sum(1)[..., None].astype(np.int32) for counts in (seen, correct))  # of a single class
    return Record(
        settings={"dataset": "shapes-c", "seed": 3, "fedctta": {"temperature": 0.5, "ema": None}},
        domains=("fog", "snow", "frost"),
        seen=seen,
        correct=correct,
        domain=domain,
        class_seen=shown,
        class_right=hit,
        class_predicted=shown,
        calibration=np.array([[seen.sum(), 900_000 * seen.sum(), correct.sum()]], np.int64),
        entropy=np.where(seen > 0, 0.25, 0).astype(np.float32),
        collaboration=np.eye(clients, dtype=np.float32)[None],
        collaboration_rounds=np.array([2]),
        **NUMBERS,
    )


@pytest.fixture
def record() -> Record:
    """Two clients, three slots; the second client is absent once."""
    return record_of([[0, 1], [0, -1], [1, 0]], [[4, 1], [2, 0], [1, 3]])


def test_accuracies_are_shares_of_images(record):
    assert record.accuracy == 11 / 20
    assert record.accuracy_by_domain == {"fog": 9 / 12, "snow": 2 / 8}
    assert record.accuracy_by_client == [7 / 12, 4 / 8]
    assert record.accuracy_by_slot == [5 / 8, 2 / 4, 4 / 8]


def test_other_measures_by_hand(record):
    assert record.mean_class_accuracy == record.accuracy  # there is one class
    assert record.class_accuracy == [11 / 20]
    assert record.macro_f1 == 2 * 11 / 40
    assert record.worst_client == 4 / 8
    assert record.major_by_client == record.minor_by_client == record.accuracy_by_client
    assert record.absent_classes == 0
    assert record.calibration_error == pytest.approx(0.9 - 11 / 20)
    assert record.mean_entropy == 0.25


def test_where_nothing_was_seen_there_is_no_accuracy():
    record = record_of([[0, -1], [-1, -1]], [[2, 0], [0, 0]])
    assert record.accuracy == 0.5
    assert record.accuracy_by_client[0] == 0.5
    assert math.isnan(record.accuracy_by_client[1])
    assert math.isnan(record.accuracy_by_slot[1])
    summary = record.summary()
    assert summary["accuracy_by_client"] == [0.5, None]
    assert summary["accuracy_by_slot"] == [0.5, None]
    json.dumps(summary, allow_nan=False)


def test_the_summary_is_plain_json_with_settings_and_numbers(record):
    summary = json.loads(json.dumps(record.summary(), allow_nan=False))
    assert summary == record.summary()
    assert summary["fedctta"] == {"temperature": 0.5, "ema": None}
    assert (summary["rounds"], summary["images"], summary["seed"]) == (3, 20, 3)
    assert {name: summary[name] for name in NUMBERS} == NUMBERS


@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_every_way_of_splitting_gives_the_same_whole(data, rounds, clients, batch):
    cells = st.integers(-1, 2)
    domain = np.array([[data.draw(cells) for _ in range(clients)] for _ in range(rounds)])
    domain[0, 0] = 0
    right = [[data.draw(st.integers(0, batch)) if d >= 0 else 0 for d in row] for row in domain]
    record = record_of(domain, right, batch)
    met = {name: record.seen[record.domain == k].sum() for k, name in enumerate(record.domains)}
    by_domain = sum(share * met[name] for name, share in record.accuracy_by_domain.items())
    by_client = np.nansum(np.array(record.accuracy_by_client) * record.seen.sum(0))
    by_slot = np.nansum(np.array(record.accuracy_by_slot) * record.seen.sum(1))
    total = record.accuracy * record.seen.sum()
    np.testing.assert_allclose([by_domain, by_client, by_slot], total)


def test_what_is_saved_comes_back(record, tmp_path):
    path = tmp_path / "runs" / "one.safetensors"
    record.save(path)
    again = Record.load(path)
    for field in fields(Record):
        mine, theirs = getattr(record, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(theirs, mine)
        assert getattr(theirs, "dtype", None) == getattr(mine, "dtype", None), field.name
    assert again.settings == record.settings
    assert again.domains == record.domains
    assert list(path.parent.iterdir()) == [path]


def test_arrays_in_any_memory_layout_come_back(record, tmp_path):
    turned = np.asfortranarray(record.domain)
    replace(record, domain=turned, correct=record.correct[:, ::-1]).save(tmp_path / "r")
    again = Record.load(tmp_path / "r")
    np.testing.assert_array_equal(again.domain, record.domain)
    np.testing.assert_array_equal(again.correct, record.correct[:, ::-1])


def test_numbers_that_are_not_finite_come_back(record, tmp_path):
    replace(record, same_domain_weight=float("nan")).save(tmp_path / "r")
    assert math.isnan(Record.load(tmp_path / "r").same_domain_weight)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def _drop_an_array(path):
    arrays, header = load_file(path), {"record": json.dumps({"settings": {}, "domains": [], **NUMBERS})}
    del arrays["seen"]
    save_file(arrays, path, metadata=header)


def _drop_the_header(path):
    save_file(load_file(path), path)


def _spoil_the_header(path):
    save_file(load_file(path), path, metadata={"record": "{"})


@pytest.mark.parametrize(
    "damage",
    [
        _truncate,
        _drop_an_array,
        _drop_the_header,
        _spoil_the_header,
        lambda path: path.write_text("not a record"),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_damaged_file_is_refused_with_the_remedy(record, tmp_path, damage):
    path = tmp_path / "one.safetensors"
    record.save(path)
    damage(path)
    with pytest.raises(UserError, match=r"one\.safetensors is damaged or not a run record: delete it and run again"):
        Record.load(path)


def test_json_has_no_infinity():
    told = to_json({"a": math.inf, "b": [-math.inf, {"c": (math.nan, 1.5)}], "d": "text", "e": True, "f": None})
    assert told == {"a": "inf", "b": ["-inf", {"c": [None, 1.5]}], "d": "text", "e": True, "f": None}
    json.dumps(told, allow_nan=False)


def test_accuracy_after_a_shift_is_that_of_the_first_ten_images_of_a_stay():
    record = record_of([[0], [0], [0], [0], [1], [1]], [[4], [3], [2], [0], [1], [0]])
    assert record.accuracy_after_shift == (4 + 3 + 2 + 1 + 0) / 20  # batches of 4 that begin within ten images
    assert record.accuracy_since_shift(12, 16) == 0
    assert record.summary()["accuracy_after_shift"] == record.accuracy_after_shift


def test_the_header_is_read_without_the_arrays(record, tmp_path):
    replace(record, origin={"fingerprint": "a"}).save(tmp_path / "r")
    header = read_header(tmp_path / "r")
    assert header["origin"] == {"fingerprint": "a"} == Record.load(tmp_path / "r").origin
    assert header["seconds"] == record.seconds
    assert "seen" not in header
    (tmp_path / "x").write_bytes(b"not this")
    with pytest.raises(UserError, match="damaged or not a run record"):
        read_header(tmp_path / "x")
