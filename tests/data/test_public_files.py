from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from fedctta.data import public_files
from fedctta.data.arrays import load_arrays
from fedctta.data.public_files import check_files, digest_of, is_held, keep, read_held, read_rows
from fedctta.data.public_sets import FETCHED
from fedctta.data.trees import open_tree
from fedctta.data.watch import Cut
from fedctta.errors import UserError


@pytest.fixture
def kept(pets, tmp_path):
    with open_tree(pets) as tree:
        keep("pets", tree, tmp_path / "kept" / "files", progress=False)
    return tmp_path / "kept" / "files"


def test_files_lie_by_domain_and_class_and_are_listed_held_out_first(kept, pets):
    rows = read_rows(kept)
    assert len(rows) == 40
    for row in rows:
        domain = row.domain.capitalize()
        assert (kept / row.path).read_bytes() == (pets / "pictures" / domain / row.path.split("/", 1)[1]).read_bytes()
        assert row.path.startswith(f"{row.domain}/{row.label}/")
        assert row.held == is_held(row.sha256)
    held = read_held(kept)
    assert list(held) == ["photo", "sketch"]
    assert 0 < sum(held.values()) < 20
    for domain, count in held.items():
        assert [row.held for row in rows if row.domain == domain] == [True] * count + [False] * (20 - count)
    assert (kept / "classes.txt").read_text() == "cat\ndog\n"


def test_one_hash_in_four_is_held_out():
    assert sum(is_held(f"{k:02x}00") for k in range(256)) == 64


def test_the_digest_is_of_places_and_contents():
    one = digest_of({"a/b": "00", "c/d": "11"})
    assert one == digest_of({"c/d": "11", "a/b": "00"})
    assert one not in (digest_of({"a/b": "11", "c/d": "00"}), digest_of({"a/b": "00"}))


@pytest.mark.parametrize("change", ["less", "other", "stopped"])
def test_another_version_leaves_nothing_behind(pets, tmp_path, change, monkeypatch):
    first = pets / "pictures" / "Photo" / "cat" / "0.png"
    if change == "less":
        first.unlink()
        error, match = (
            UserError,
            "holds 39 of the 40 files of pets: name a folder with all files of github.com/somebody",
        )
    elif change == "other":
        first.write_bytes((pets / "pictures" / "Photo" / "cat" / "1.png").read_bytes())
        error, match = UserError, "holds another version of pets .*dataset=folders folder=PATH"
    else:
        monkeypatch.setattr("fedctta.data.public_files.digest_of", lambda _: 1 / 0)
        error, match = ZeroDivisionError, "division"
    with open_tree(pets) as tree, pytest.raises(error, match=match):
        keep("pets", tree, tmp_path / "kept" / "files")
    assert not (tmp_path / "kept").exists() or list((tmp_path / "kept").iterdir()) == []


def test_damaged_and_half_written_sets_are_found_and_removed(kept):
    assert check_files(kept) == [(kept, "ok")]
    left = kept.parent / ".files.x.part"
    left.mkdir()
    broken = kept / read_rows(kept)[3].path
    broken.write_bytes(b"")
    assert check_files(kept) == [(left, "incomplete"), (broken, "damaged")]
    assert check_files(kept, repair=True) == [(left, "incomplete, removed"), (broken, "damaged, removed")]
    assert list(kept.parent.iterdir()) == []
    assert check_files(kept) == []


@pytest.mark.parametrize("name", ["table.csv", "held.json"])
def test_a_damaged_list_is_told(kept, name):
    (kept / name).write_text("?")
    assert check_files(kept) == [(kept, "damaged")]
    with pytest.raises(UserError, match=r"damaged: run `fedctta data check --repair`"):
        read_rows(kept) if name == "table.csv" else read_held(kept)


def test_recordings_become_arrays(tmp_path, monkeypatch):
    """The file itself is not kept; domains, held-out windows and classes are."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "watch_dataset.npy").write_bytes(b"recordings")
    digest = digest_of({"watch_dataset.npy": hashlib.sha256(b"recordings").hexdigest()})
    monkeypatch.setitem(FETCHED, "watch", replace(FETCHED["watch"], digest=digest, domains=("b", "a")))
    windows = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    cuts = {name: Cut(windows, np.arange(4), held) for name, held in (("a", 1), ("b", 2))}
    monkeypatch.setattr(public_files, "cut_recordings", {b"recordings": cuts}.get)
    with open_tree(tmp_path / "source") as tree:
        keep("watch", tree, tmp_path / "kept")
    data = load_arrays(tmp_path / "kept")
    assert (data.names, data.classes) == (("a", "b"), FETCHED["watch"].classes)
    np.testing.assert_array_equal(data.images["a"], windows)
    assert data.labels_of("b").tolist() == [0, 1, 2, 3]
    assert read_held(tmp_path / "kept") == {"b": 2, "a": 1}
    assert check_files(tmp_path / "kept") == [(tmp_path / "kept", "ok")]
