"""Files are whole or not there."""

from __future__ import annotations

import errno
import fcntl
import inspect
import io
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from fedctta.errors import NoRoom, UserError
from fedctta.files import (
    append,
    is_locked,
    lock,
    make_writable,
    open_private,
    open_tensors,
    require_writable,
    whole,
    whole_folder,
    write_tensors,
)


def test_a_file_appears_under_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "file.bin"
    with whole(path) as part:
        part.write_bytes(b"1234")
        assert part.parent == path.parent, "a rename is atomic only within one folder"
        assert not path.exists()
    assert path.read_bytes() == b"1234"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "found"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_who_may_read_it_is_what_the_user_says(tmp_path, mask, found):
    before = os.umask(mask)
    try:
        with whole(tmp_path / "file") as part:
            part.write_text("x")
        write_tensors(tmp_path / "tensors", {"a": torch.zeros(2)}, "kind", {})
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "tensors")} == {found}


def test_what_is_private_is_for_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        with whole(tmp_path / "file", private=True) as part:
            part.write_text("x")
        write_tensors(tmp_path / "tensors", {"a": torch.zeros(2)}, "kind", {}, private=True)
        open_private(tmp_path / "log", "a").close()
        (tmp_path / "old").write_text("of an earlier version")
        open_private(tmp_path / "old", "a").close()
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("make", [whole, whole_folder])
def test_a_full_disk_is_another_failure_than_a_mistake(tmp_path, error, make):
    def write():
        with make(tmp_path / "file"):
            raise OSError(error, os.strerror(error))

    with pytest.raises(NoRoom, match=r"cannot write .*file") as told:
        write()
    assert told.value.code == 75 != UserError.code


def test_tensors_that_find_no_room_say_so(tmp_path):
    def fill(path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_tensors(path, {"a": torch.zeros(4096)}, "kind", {})
        except NoRoom as error:
            sys.stdout.write(str(error))
            sys.exit(error.code)

    code = "import resource, sys, torch\nfrom pathlib import Path\nfrom fedctta.errors import NoRoom\n"
    code += "from fedctta.files import write_tensors\n" + textwrap.dedent(inspect.getsource(fill))
    code += f"fill(Path({str(tmp_path / 'file')!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (75, []), done.stderr
    assert "file" in done.stdout


class Short(io.FileIO):
    """Writes at most 5 bytes at a time, as the system may, and nothing after `room` bytes."""

    room = 1 << 30

    def write(self, content):
        left = self.room - self.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(content)[: min(5, left)])


def test_an_append_is_whole_or_leaves_nothing(tmp_path):
    with Short(tmp_path / "log", "ab") as file:
        append(file, b"a line of many bytes\n", tmp_path / "log")
        file.room = 30
        with pytest.raises(NoRoom, match="log: No space left on device"):
            append(file, b"another line of many bytes\n", tmp_path / "log")
        assert (tmp_path / "log").read_bytes() == b"a line of many bytes\n"
        file.room = 1 << 30
        append(file, b"the next\n", tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"a line of many bytes\nthe next\n"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = tmp_path / "file"
    path.write_text("old")

    def write_half():
        with whole(path) as part:
            part.write_text("ne")
            raise failure

    with pytest.raises(failure):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "file"
    with whole(path) as first, whole(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "the one that ends last wins"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_hold_files_is_named(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    path = tmp_path / "taken" / "file"
    with pytest.raises(UserError, match=r"cannot write .*file: .*; choose a folder"), whole(path):
        pytest.fail("the body must not run")


@pytest.mark.parametrize("told", [OSError("8 requested and 0 written"), OSError(28, "8 requested and 0 written")])
def test_what_cannot_be_written_is_told_with_its_reason(tmp_path, told):
    def write():
        with whole(tmp_path / "file"):
            raise told

    with pytest.raises(UserError, match=r"cannot write .*file: 8 requested and 0 written; make room"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ask", [require_writable, make_writable])
def test_a_refusal_without_words_of_the_system_is_not_told_as_none(tmp_path, ask, monkeypatch):
    def refuse(**_):
        raise OSError("no more names")

    monkeypatch.setattr("fedctta.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(UserError, match=r"cannot write to .*: no more names; choose a folder"):
        ask(tmp_path)


FULL = """
import resource, sys
from pathlib import Path
import torch
from fedctta.errors import UserError
from fedctta.models.zoo import save_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save_tensors({"a": torch.zeros(1000)}, Path(sys.argv[1]), {})
except UserError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_for_tensors_too(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "w.safetensors")], capture_output=True, text=True, timeout=600
    )
    assert told.stderr == ""
    assert "w.safetensors: " in told.stdout
    assert "File too large" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_tensors_come_back_with_their_header(tmp_path):
    one = torch.arange(6.0).view(2, 3)
    write_tensors(tmp_path / "pt", {"a": one.t(), "b": one}, "mine", {"rounds": [1, 2]}, sync=True)
    with open_tensors(tmp_path / "pt", "mine", "damaged") as (header, file):
        assert header == {"rounds": [1, 2]}
        assert torch.equal(file.get_tensor("a"), one.t())
        assert torch.equal(file.get_tensor("b"), one)
    write_tensors(tmp_path / "numpy", {"a": one.numpy().T}, "mine", None, framework="numpy")
    with open_tensors(tmp_path / "numpy", "mine", "damaged", "numpy") as (header, file):
        assert header is None
        assert np.array_equal(file.get_tensor("a"), one.numpy().T)


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_tensors_that_cannot_be_read_are_refused_with_the_words_given(tmp_path, content):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=r"^file is damaged: delete it$"):
        read(tmp_path / "file", "mine")


def read(path, kind):
    with open_tensors(path, kind, "file is damaged: delete it") as (header, _):
        return header["rounds"]


def test_a_file_of_another_kind_and_a_header_that_lacks_something_are_refused_alike(tmp_path):
    write_tensors(tmp_path / "file", {"a": torch.zeros(1)}, "mine", {"slots": 1})
    for kind in ("mine", "yours"):
        with pytest.raises(UserError, match=r"^file is damaged: delete it$"):
            read(tmp_path / "file", kind)
    write_tensors(tmp_path / "file", {"a": torch.zeros(1)}, "mine", {"rounds": 1})
    assert read(tmp_path / "file", "mine") == 1


def test_one_holds_a_lock_at_a_time(tmp_path):
    held = lock(tmp_path / "lock", "another is here")
    with pytest.raises(UserError, match=r"^another is here$"):
        lock(tmp_path / "lock", "another is here")
    held.close()
    lock(tmp_path / "lock", "another is here").close()


def test_a_lock_whose_file_was_deleted_keeps_nobody_out_and_is_taken_again(tmp_path, monkeypatch):
    path, flock, turns = tmp_path / "lock", fcntl.flock, []
    earlier = lock(path, "another is here")

    def flock_late(file, how):
        """Take turns so: the earlier one, which deletes the file, is done after we have opened it."""
        turns.append(how)
        if len(turns) == 1:
            path.unlink()
            earlier.close()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    held = lock(path, "another is here")
    assert len(turns) == 2
    assert os.path.samestat(os.fstat(held.fileno()), path.stat())
    with pytest.raises(UserError, match="another is here"):
        lock(path, "another is here")
    held.close()


# The command, stopped while it writes its record; it says so by a line.
WRITING = """
import signal, sys, time
import safetensors.numpy
from fedctta import cli

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started by

def slowly(arrays, part, metadata):
    part.write_text("half")
    print("writing", flush=True)
    for _ in range(600):
        time.sleep(0.1)  # in steps: Python does not see a signal that comes just before a sleep until the sleep ends

safetensors.numpy.save_file = slowly
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_told_to_end_leaves_nothing_half_written(tmp_path, number):
    words = ["run", "dataset=shapes-c", "domains=fog", "niid.clusters=1", "clients=2", "slots=1", "batch=4"]
    command = [sys.executable, "-c", WRITING, *words, "aggregator=local", "--quiet", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "writing\n"
            assert list(tmp_path.rglob("*.part"))
            running.send_signal(number)
            assert running.wait(60) == 128 + number
        finally:
            running.kill()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_nothing_is_left_of_asking_whether_a_folder_can_be_written(tmp_path):
    require_writable(tmp_path)
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_to_write_to_at_once_is_made_and_left_empty(tmp_path):
    make_writable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("ask", [require_writable, make_writable])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, ask):
    (tmp_path / "taken").write_text("a file, not a folder")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "inside"):
        with pytest.raises(UserError, match=r"cannot write to .*taken.*; choose a folder"):
            ask(folder)


def test_a_folder_appears_when_it_is_whole_or_not_at_all(tmp_path):
    place = tmp_path / "new" / "set"
    with pytest.raises(TypeError), whole_folder(place) as part:
        (part / "x").write_text(place)  # not a text: it fails after the file was opened
    assert list((tmp_path / "new").iterdir()) == []
    with whole_folder(place) as part:
        (part / "x").write_text("whole")
        assert not place.exists()
    with whole_folder(place) as part:
        (part / "x").write_text("later")
    assert (place / "x").read_text() == "whole"
    assert list((tmp_path / "new").iterdir()) == [place]


def test_who_looks_whether_a_file_is_locked_keeps_nobody_from_it(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    assert not is_locked(path)
    assert not path.exists()
    with lock(path, "another is here"):
        assert is_locked(path)
    looking = path.open("rb")  # for a moment, as `is_locked` does
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("fedctta.files.time.sleep", lambda seconds: looking.close())
    with lock(path, "another is here"):
        assert is_locked(path)
    assert not is_locked(path)


@pytest.mark.parametrize(("error", "code"), [(errno.ENOSPC, 75), (errno.EACCES, 2)])
def test_a_folder_for_which_there_is_no_room_at_all_is_another_failure_too(tmp_path, monkeypatch, error, code):
    def refuse(**_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fedctta.files.tempfile.mkdtemp", refuse)
    with (
        pytest.raises(UserError, match=r"cannot write .*set: .*; choose a folder") as told,
        whole_folder(tmp_path / "set"),
    ):
        pytest.fail("the body must not run")
    assert told.value.code == code


def test_a_folder_in_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose a folder you may write to"), whole_folder(tmp_path / "file" / "set"):
        pass
