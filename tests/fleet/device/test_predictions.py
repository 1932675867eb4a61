from __future__ import annotations

import json
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedctta.errors import UserError
from fedctta.fleet.device import predictions
from fedctta.fleet.device.predictions import cut_torn_line, open_predictions, sole_writer
from fedctta.fleet.device.sources import Done


def rows(first, count=3, batch=0):
    return [
        {"id": f"é{n}", "class": n % 3, "name": None, "confidence": 0.5, "batch": batch, "time": 1.0}
        for n in range(first, first + count)
    ]


def test_lines_are_appended_and_remembered(tmp_path):
    path = tmp_path / "p.jsonl"
    with open_predictions(path) as out:
        assert out.done() == Done(frozenset(), 0)
        out.append(rows(0))
        assert len(path.read_text().splitlines()) == 3  # at once, and not when it is closed
    with open_predictions(path) as out:
        assert out.done() == Done({"é0", "é1", "é2"}, 3, 1)
        out.append(rows(3, 1, 1))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["é0", "é1", "é2", "é3"]


@given(st.lists(st.integers(0, 9000), max_size=4), st.integers(0, 9000))
def test_what_follows_the_last_line_end_is_cut(tmp_path_factory, lengths, torn):
    path = tmp_path_factory.mktemp("torn") / "p.jsonl"
    whole = b"".join(b"x" * length + b"\n" for length in lengths)
    path.write_bytes(whole + b"y" * torn)
    cut_torn_line(path)
    assert path.read_bytes() == whole


def test_file_names_that_are_no_text_survive(tmp_path):
    with open_predictions(tmp_path / "p.jsonl") as out:
        out.append([{"id": "bad\udcff.png", "batch": 0}])
        assert out.done().ids == {"bad\udcff.png"}


def test_a_file_of_something_else_is_not_touched(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("my notes\n")
    with open_predictions(path) as out, pytest.raises(UserError, match="line 1"):
        out.done()
    assert path.read_text() == "my notes\n"
    with pytest.raises(UserError, match=r"\.jsonl or \.parquet"):
        open_predictions(tmp_path / "p.csv")


def test_parquet_parts_are_whole_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "PART_ROWS", 6)
    folder = tmp_path / "p.parquet"
    killed = open_predictions(folder)
    for batch in range(5):
        killed.append(rows(3 * batch, batch=batch))
    assert pq.read_table(folder).num_rows == 12  # the open rows are passed over
    with open_predictions(folder) as out:
        assert out.done() == Done({f"é{n}" for n in range(15)}, 15, 5)
        out.append(rows(15, batch=5))
    table = pq.read_table(folder)
    assert sorted(table["id"].to_pylist()) == sorted(f"é{n}" for n in range(18))
    assert table.column_names == ["id", "class", "name", "confidence", "batch", "time", "label"]
    assert not list(folder.glob("_rows*"))


def test_a_part_whose_rows_were_not_removed_counts_once(tmp_path):
    folder = tmp_path / "p.parquet"
    with open_predictions(folder) as out:
        out.append(rows(0))
        left = next(folder.glob("_rows*"))
        content = left.read_bytes()
    left.write_bytes(content)  # killed between the two steps
    assert open_predictions(folder).done().images == 3


FULL = """
import json, resource, sys
from pathlib import Path
from fedctta.errors import NoRoom
from fedctta.fleet.device.predictions import open_predictions
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
with open_predictions(Path(sys.argv[1])) as out:
    for batch in range(100):
        try:
            out.append([{"id": f"{batch}-{n}", "batch": batch} for n in range(3)])
        except NoRoom as error:
            print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            out.append([{"id": f"{batch}-{n}", "batch": batch} for n in range(3)])
"""


def test_a_full_disk_tears_no_line_and_what_follows_is_whole(tmp_path):
    """The system itself writes a part of the batch and refuses the rest."""
    path = tmp_path / "p.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"cannot write {path}: File too large") == 1
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert ids == [f"{batch}-{n}" for batch in range(100) for n in range(3)]


def test_predictions_are_their_users_alone(tmp_path):
    for name in ("p.jsonl", "p.parquet"):
        with open_predictions(tmp_path / name) as out:
            out.append(rows(0))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def refused(path):
    with sole_writer(path), open_predictions(path):
        raise UserError("refused")


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_who_is_refused_leaves_nothing(tmp_path, name):
    with pytest.raises(UserError, match="refused"):
        refused(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_who_is_refused_leaves_the_files_of_one_that_comes_just_then(tmp_path, monkeypatch, name):
    path, remove = tmp_path / name, Path.unlink

    with ExitStack() as others:

        def unlink(gone, missing_ok=False):
            remove(gone, missing_ok=missing_ok)
            if gone.name in (".p.jsonl.lock", "_lock") and not opened:
                opened.append(others.enter_context(sole_writer(path)))
                opened.append(others.enter_context(open_predictions(path)))
                opened[1].append(rows(0))

        opened = []
        monkeypatch.setattr(Path, "unlink", unlink)
        with pytest.raises(UserError, match="refused"):
            refused(path)
        assert opened[1].done().images == 3
        with pytest.raises(UserError, match="another device writes to"):
            refused(path)
    with open_predictions(path) as out:
        assert out.done().images == 3
