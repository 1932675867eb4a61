"""Files are whole or not there."""

from __future__ import annotations

import stat

import pytest

from fedctta.errors import UserError
from fedctta.files import make_writable, require_writable, whole


def test_a_file_appears_under_its_name_only_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "folder" / "file.bin"
    with whole(path) as part:
        part.write_bytes(b"1234")
        assert part.parent == path.parent, "a rename is atomic only within one folder"
        assert not path.exists()
    assert path.read_bytes() == b"1234"
    assert list(path.parent.iterdir()) == [path]


def test_everybody_may_read_it(tmp_path):
    with whole(tmp_path / "file") as part:
        part.write_text("x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


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
