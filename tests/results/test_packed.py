"""A file of records gives back what was written, whatever the order, and never two rows for one experiment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

from fedctta.errors import UserError
from fedctta.report.weights import depict
from fedctta.results.digests import digest
from fedctta.results.packed import merge, read_packed, write_packed
from fedctta.runs.experiment import run


@pytest.fixture
def record(domains, tiny_module):
    small = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}
    (found,) = run(dataset=domains, model=tiny_module, aggregator="fedavg", **small)
    return replace(found, origin=origin("a", "2026-11-17T10:00:00+00:00"))


def origin(key, made):
    return {"fingerprint": key, "words": {"batch": 4}, "version": "0.8.0", "made": made}


def test_what_is_written_is_read_again(record, tmp_path):
    kept = digest(record, depict(record))
    write_packed(tmp_path / "x.parquet", {"a": kept, "b": replace(kept, weights=None)})
    found = read_packed(tmp_path / "x.parquet")
    assert list(found) == ["a", "b"]
    assert found["a"].parts == kept.parts
    assert {k: v for k, v in found["a"].whole.items() if v == v} == {k: v for k, v in kept.whole.items() if v == v}
    assert found["a"].besides == kept.besides
    assert (found["a"].rounds, found["a"].origin) == (kept.rounds, kept.origin)
    assert found["a"].settings["aggregator"] == "fedavg"
    assert found["b"].weights is None
    mine, theirs = kept.weights, found["a"].weights
    assert (mine.titles, mine.shifts) == (theirs.titles, theirs.shifts)
    for name in ("moments", "first", "rounds"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True)


def test_the_same_runs_give_the_same_file_and_plain_columns(record, tmp_path):
    one, other = digest(record), replace(digest(record), rounds=7)
    write_packed(tmp_path / "x.parquet", {"a": one, "b": other})
    write_packed(tmp_path / "y.parquet", {"b": other, "a": one})
    assert (tmp_path / "x.parquet").read_bytes() == (tmp_path / "y.parquet").read_bytes()
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table["accuracy"][0].as_py() == pytest.approx(100 * record.accuracy, rel=1e-6)
    assert table["aggregator"][0].as_py() == "fedavg"


def test_the_later_of_two_runs_stays(record):
    early, late = (replace(digest(record), origin=origin("a", f"2026-11-{day}T10:00:00+00:00")) for day in (16, 17))
    assert merge({"a": early}, {"a": late})["a"] is late
    assert merge({"a": late}, {"a": early})["a"] is late
    assert list(merge({"a": early}, {"b": late})) == ["a", "b"]


def test_no_file_is_empty_and_another_file_is_refused(tmp_path):
    assert read_packed(tmp_path / "none.parquet") == {}
    (tmp_path / "x.parquet").write_bytes(b"not this")
    with pytest.raises(UserError, match="damaged or holds no records"):
        read_packed(tmp_path / "x.parquet")
