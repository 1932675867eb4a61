from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedctta.data import cache
from fedctta.errors import NoRoom, UserError

ARRAY = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "set" / "a.npy"
    cache.save_array(path, ARRAY)
    return path


def test_cache_dir_is_the_environments_and_is_not_made_by_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    assert cache.cache_dir() == tmp_path / "home"
    assert not cache.cache_dir().exists()
    monkeypatch.delenv("FEDCTTA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / ".cache" / "fedctta"


def test_a_file_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="FEDCTTA_HOME"):
        cache.cache_dir()


def test_an_unwritable_cache_says_what_to_set(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="FEDCTTA_HOME"):
        cache.save_array(tmp_path / "file" / "set" / "a.npy", ARRAY)


def test_saved_arrays_come_back_as_read_only_memory_maps(saved: Path):
    array = cache.open_array(saved)
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    np.testing.assert_array_equal(array, ARRAY)
    assert sorted(path.name for path in saved.parent.iterdir()) == ["a.npy", "a.npy.json"]


def test_checksum_is_of_the_values_not_of_their_memory_order():
    assert cache.sha256(np.asfortranarray(ARRAY)) == cache.sha256(ARRAY)
    labels = np.arange(5, dtype=np.int64)
    assert cache.sha256(labels.astype(">i8")) == cache.sha256(labels)
    assert cache.sha256(labels) != cache.sha256(labels + 1)


@pytest.mark.parametrize("keep", [0, 10, 130, 200])
def test_a_truncated_array_is_refused_with_a_remedy(saved: Path, keep: int):
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"a\.npy is damaged: run `fedctta data check --repair`"):
        cache.open_array(saved)


def test_an_array_of_another_shape_or_length_is_refused(saved: Path):
    whole = saved.read_bytes()
    saved.write_bytes(whole + b"x")
    with pytest.raises(UserError, match="damaged"):
        cache.open_array(saved)
    np.save(saved, ARRAY[:1])
    with pytest.raises(UserError, match="damaged"):
        cache.open_array(saved)


def test_a_broken_card_is_refused(saved: Path):
    saved.with_name("a.npy.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        cache.open_array(saved)
    assert cache.state(saved) == "damaged"


def test_an_array_without_its_card_is_absent(saved: Path):
    assert cache.has_array(saved)
    saved.with_name("a.npy.json").unlink()
    assert not cache.has_array(saved)
    assert cache.state(saved) == "incomplete"


def test_check_finds_one_changed_byte_which_opening_does_not(saved: Path):
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    saved.write_bytes(content)
    cache.open_array(saved)
    assert cache.check_folder(saved.parent) == [(saved, "damaged")]


def test_repair_removes_what_is_not_ok_and_nothing_else(saved: Path):
    other, orphan = saved.with_name("b.npy"), saved.with_name("c.npy")
    cache.save_array(other, ARRAY)
    cache.save_array(orphan, ARRAY)
    other.write_bytes(b"")
    orphan.unlink()
    found = cache.check_folder(saved.parent, repair=True)
    assert found == [(saved, "ok"), (other, "damaged, removed"), (orphan, "incomplete, removed")]
    assert cache.check_folder(saved.parent) == [(saved, "ok")]
    assert sorted(path.name for path in saved.parent.iterdir()) == ["a.npy", "a.npy.json"]


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.save_array(tmp_path / "a.npy", ARRAY)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(
        NoRoom, match="No space left on device; make room, or choose another folder, by setting FEDCTTA_HOME"
    ):
        cache.save_array(tmp_path / "a.npy", ARRAY)


def test_a_disk_that_is_full_half_way_is_told_with_what_numpy_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def half(*_: object, **__: object) -> None:
        raise OSError("96 requested and 8 written")  # what numpy raises then: an error without words of the system

    monkeypatch.setattr(np, "save", half)
    with pytest.raises(UserError, match=r"cannot write .*: 96 requested and 8 written; make room"):
        cache.save_array(tmp_path / "a.npy", ARRAY)


def test_an_array_is_removed_with_its_card(saved: Path):
    cache.remove_array(saved)
    assert list(saved.parent.iterdir()) == []
    cache.remove_array(saved)


def test_images_go_round(tmp_path: Path):
    data = cache.Images(ARRAY, np.array([1, 0], np.int64), ("x", "y"))
    assert not cache.has_images(tmp_path, "test")
    cache.save_images(tmp_path, "test", data)
    assert cache.has_images(tmp_path, "test")
    again = cache.open_images(tmp_path, "test", ("x", "y"))
    assert len(again) == 2
    np.testing.assert_array_equal(again.images, data.images)
    np.testing.assert_array_equal(again.labels, data.labels)
    assert json.loads((tmp_path / "test-labels.npy.json").read_text())["dtype"] == "int64"
