"""The audit log shows what was changed in it, and where."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest

from fedctta.errors import NoRoom
from fedctta.fleet.server import audit
from fedctta.fleet.server.audit import HEAD, LOG, OLD, chain_breaks, last_hash, read_audit, record


@pytest.fixture
def folder(tmp_path):
    for k in range(6):
        record(tmp_path, "admitted", device=f"device-{k}", node=str(k))
    return tmp_path


def lines(folder):
    return (folder / LOG).read_bytes().splitlines(keepends=True)


def rewrite(folder, content):
    (folder / LOG).write_bytes(b"".join(content))


def test_a_log_as_it_was_written_is_in_order(folder):
    assert chain_breaks(folder) == []
    assert [line["device"] for line in read_audit(folder)] == [f"device-{k}" for k in range(6)]
    assert [line["number"] for line in read_audit(folder)] == [1, 2, 3, 4, 5, 6]
    assert read_audit(folder)[0]["before"] == "0" * 64
    assert oct((folder / LOG).stat().st_mode & 0o777) == "0o600"


def test_no_log_is_in_order(tmp_path):
    assert chain_breaks(tmp_path) == []
    assert read_audit(tmp_path) == []
    assert last_hash(tmp_path) == "0" * 64


@pytest.mark.parametrize("k", range(6))
def test_a_deleted_line_is_found(folder, k):
    content = lines(folder)
    rewrite(folder, content[:k] + content[k + 1 :])
    found = chain_breaks(folder)
    assert found[0].line == k + 1
    assert ("deleted" if k < 5 else "cut off") in found[0].what


@pytest.mark.parametrize("k", range(6))
def test_a_changed_line_is_found(folder, k):
    content = lines(folder)
    content[k] = content[k].replace(b"device-", b"robot--")
    rewrite(folder, content)
    # Only the next line, or the head, tells what the line was.
    assert chain_breaks(folder)[0].line == min(k + 2, 6)
    assert "changed" in chain_breaks(folder)[0].what


@pytest.mark.parametrize("k", range(5))
def test_swapped_lines_are_found(folder, k):
    content = lines(folder)
    content[k], content[k + 1] = content[k + 1], content[k]
    rewrite(folder, content)
    assert [found.line for found in chain_breaks(folder)][:2] == [k + 1, k + 2]


def test_a_line_without_the_chain_is_found(folder):
    line = {"number": 7, "time": 0, "event": "admitted", "device": "thief", "before": "0" * 64}
    rewrite(folder, [*lines(folder), json.dumps(line).encode() + b"\n"])
    assert chain_breaks(folder)[0].line == 7
    assert "added without the chain" in chain_breaks(folder)[0].what


def test_a_line_with_the_chain_but_without_the_head_is_found_also_later(folder):
    line = {"number": 7, "time": 0, "event": "admitted", "device": "thief", "before": last_hash(folder)}
    rewrite(folder, [*lines(folder), json.dumps(line).encode() + b"\n"])
    assert [found.line for found in chain_breaks(folder)] == [7]
    record(folder, "refused")
    assert chain_breaks(folder)


@pytest.mark.parametrize("cut", [1, 2, 6])
def test_a_cut_end_is_found_also_later(folder, cut):
    rewrite(folder, lines(folder)[:-cut])
    assert chain_breaks(folder)[0].line == 7 - cut
    record(folder, "refused", device="x")
    assert bool(chain_breaks(folder)) == (cut > 1)  # the last line stood in the head and is written again
    assert [line["number"] for line in read_audit(folder)][-2:] == [6, 7]


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000])
def test_a_head_that_is_gone_or_damaged_is_found_also_later(folder, content):
    (folder / HEAD).write_bytes(content)
    assert HEAD in chain_breaks(folder)[0].what
    (folder / HEAD).unlink()
    record(folder, "refused")
    assert chain_breaks(folder)[0].line == 7


@pytest.mark.parametrize("written", [0, 1, 30])
def test_a_line_that_a_dying_server_did_not_finish_is_completed(folder, written):
    content = lines(folder)
    rewrite(folder, [*content[:-1], content[-1][:written]])
    record(folder, "refused", device="x")
    assert chain_breaks(folder) == []
    assert len(read_audit(folder)) == 7


def test_a_foreign_piece_at_the_end_stays_to_be_seen(folder):
    rewrite(folder, [*lines(folder), b"junk"])
    record(folder, "refused", device="x")
    assert chain_breaks(folder)[0].line == 7
    assert len(read_audit(folder)) == 8  # the head's line is repeated, and the new one


@pytest.mark.parametrize("junk", [b"\n", b"null\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"number": "1"}\n'])
def test_junk_is_no_exception(folder, junk):
    content = lines(folder)
    rewrite(folder, [*content[:3], junk, *content[3:]])
    assert chain_breaks(folder)[0].line == 4
    assert len(read_audit(folder)) == 6


def test_a_log_that_was_forged_whole_is_told_by_a_noted_hash(folder, tmp_path_factory):
    noted = last_hash(folder)
    record(folder, "revoked", device="device-3")
    assert chain_breaks(folder, noted) == []
    other = tmp_path_factory.mktemp("forged")
    for k in range(9):
        record(other, "admitted", device=f"device-{k}")
    assert chain_breaks(other) == []
    assert "noted" in chain_breaks(other, noted)[0].what


def test_what_a_device_says_can_neither_break_lines_nor_fill_the_disk(tmp_path):
    record(tmp_path, "refused", reason='"\n{"number": 2}\n' + "x" * 10_000)
    assert len(lines(tmp_path)) == 1
    assert len(lines(tmp_path)[0]) < 1000
    assert chain_breaks(tmp_path) == []
    with pytest.raises(ValueError, match="before"):
        record(tmp_path, "refused", before="x")


@pytest.fixture
def rotated(tmp_path, monkeypatch):
    """A log that was rotated several times, of which the oldest lines are gone."""
    monkeypatch.setattr(audit, "LARGEST", 900)
    for k in range(30):
        record(tmp_path, "admitted", device=f"device-{k}")
    return tmp_path


def test_a_log_that_is_too_long_is_rotated_and_read_with_the_last_one(rotated):
    assert chain_breaks(rotated) == []
    numbers = [line["number"] for line in read_audit(rotated)]
    assert numbers[0] > 1
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert read_audit(rotated)[-1]["device"] == "device-29"
    assert all((rotated / name).stat().st_size < 1200 for name in (LOG, OLD))
    assert (rotated / OLD).stat().st_mode & 0o777 == 0o600
    assert chain_breaks(rotated, last_hash(rotated)) == []
    assert f"older than line {numbers[0]}" in chain_breaks(rotated, "ab" * 32)[0].what


@pytest.mark.parametrize(("place", "k"), [(OLD, 0), (OLD, 1), (OLD, -1), (LOG, 1), (LOG, -1)])
def test_a_line_deleted_from_either_file_is_found(rotated, place, k):
    content = (rotated / place).read_bytes().splitlines(keepends=True)
    number = json.loads(content[k])["number"]
    del content[k]
    (rotated / place).write_bytes(b"".join(content))
    assert chain_breaks(rotated)[0].line == number


def test_an_old_file_and_the_line_of_the_rotation_are_missed(rotated):
    content = (rotated / LOG).read_bytes()
    (rotated / LOG).write_bytes(content.partition(b"\n")[2])
    assert chain_breaks(rotated)
    (rotated / LOG).write_bytes(content)
    (rotated / OLD).unlink()
    assert "lines before it were deleted" in chain_breaks(rotated)[0].what


@pytest.mark.parametrize("written", [None, 0, 20])
def test_a_server_that_dies_while_it_rotates_loses_nothing(rotated, written):
    """It had moved the log, and of the new one written nothing at all, or a head and a piece of the first line."""
    (rotated / LOG).replace(rotated / OLD)
    if written is not None:
        record(rotated, "refused")
        first = (rotated / LOG).read_bytes().splitlines(keepends=True)[0]
        assert json.loads(first)["event"] == "rotated"
        (rotated / LOG).write_bytes(first[:written])
        (rotated / HEAD).write_bytes(first)
    record(rotated, "refused", device="x")
    assert chain_breaks(rotated) == []
    assert [line["event"] for line in read_audit(rotated)][-2:] == ["rotated", "refused"]


def _record_many(folder):
    for _ in range(10):
        record(folder, "refused", process=os.getpid())


def test_several_processes_write_one_chain(tmp_path):
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.map(_record_many, [tmp_path] * 3)
    assert chain_breaks(tmp_path) == []
    assert len(read_audit(tmp_path)) == 30


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(audit.os, "write", full)
    with pytest.raises(NoRoom, match=r"audit\.jsonl: No space left on device"):
        record(tmp_path, "refused")
    monkeypatch.undo()
    record(tmp_path, "admitted")
    assert chain_breaks(tmp_path) == []
    assert [line["event"] for line in read_audit(tmp_path)] == ["refused", "admitted"]
