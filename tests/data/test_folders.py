"""Image files of one's own as domains, decoded once."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image

from fedctta.data import folders
from fedctta.data.folders import load_folders
from fedctta.errors import UserError

SIZES = {("photo", "dog"): 3, ("photo", "cat"): 2, ("sketch", "dog"): 4}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))


@pytest.fixture
def pets(tmp_path):
    random = np.random.default_rng(0)
    for (domain, kind), count in SIZES.items():
        place = tmp_path / "pets" / domain / kind
        place.mkdir(parents=True)
        for k in range(count):
            Image.fromarray(random.integers(0, 256, (6, 5 + k, 3), np.uint8)).save(place / f"{k}.png")
    return tmp_path / "pets"


def test_domains_have_sizes_and_classes_of_their_own(pets):
    data = load_folders(pets, size=4)
    assert data.names == ("photo", "sketch")
    assert data.sizes == (5, 4)
    assert data.classes == ("cat", "dog")
    assert data.labels_of("photo").tolist() == [0, 0, 1, 1, 1]
    assert data.labels_of("sketch").tolist() == [1] * 4
    assert data.images["photo"].shape == (5, 4, 4, 3)
    assert "photo 5, sketch 4; shorter side resized to 4 (bicubic), middle 4 x 4 cut out" in data.notes[0]
    assert data.notes[1] == "classes in the order the model must have: 0 cat, 1 dog"


def test_files_are_decoded_once_and_again_when_they_change(pets, monkeypatch):
    first = load_folders(pets, size=4)
    decoded = []
    real = folders.decode_files
    monkeypatch.setattr(folders, "decode_files", lambda paths, *rest: decoded.append(paths) or real(paths, *rest))
    again = load_folders(pets, size=4)
    assert not decoded
    np.testing.assert_array_equal(again.images["photo"], first.images["photo"])
    changed = pets / "sketch" / "dog" / "0.png"
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(changed)
    os.utime(changed, ns=(1, 1))
    assert not load_folders(pets, size=4).images["sketch"][0].any()
    assert [len(paths) for paths in decoded] == [4]  # only the domain that changed
    load_folders(pets, size=3)
    assert len(decoded) == 3


def test_broken_files_are_listed_also_from_the_cache(pets):
    (pets / "photo" / "cat" / "0.png").write_bytes(b"no picture")
    for _ in range(2):
        data = load_folders(pets, size=4)
        assert data.labels_of("photo").tolist() == [0, 1, 1, 1]
        (told,) = (note for note in data.notes if "cannot be read" in note)
        assert told.startswith("files that cannot be read and are left out: 1: ")
        assert "cat/0.png (cannot identify" in told


def test_a_domain_without_a_readable_file_is_refused(pets):
    for k in range(4):
        (pets / "sketch" / "dog" / f"{k}.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"domain 'sketch' of .* has no image that can be read"):
        load_folders(pets, size=4)


def test_without_classes_there_are_no_labels(tmp_path):
    for domain in ("a", "b"):
        (tmp_path / "bare" / domain).mkdir(parents=True)
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "bare" / domain / "1.png")
    data = load_folders(tmp_path / "bare")
    assert data.labels is None
    assert data.classes == ()
    assert "no labels: accuracy is not known" in data.notes
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / "bare" / "b" / "1.png")
    with pytest.raises(UserError, match=r"differ in size \(a 4 x 4, b 5 x 5\): add size=64"):
        load_folders(tmp_path / "bare")


def test_a_table_may_say_it_all(pets):
    rows = ["path,domain,label", "photo/dog/0.png,day,dog", "photo/cat/1.png,night,cat", "sketch/dog/3.png,night,dog"]
    (pets / "list.csv").write_text("\n".join(rows))
    (pets / "classes.txt").write_text("dog\ncat\n")
    data = load_folders(pets / "list.csv", size=4)
    assert (data.names, data.sizes, data.classes) == (("day", "night"), (1, 2), ("dog", "cat"))
    assert data.labels_of("night").tolist() == [1, 0]
    (pets / "list.csv").write_text("\n".join([*rows[:3], "sketch/dog/3.png,night,"]))
    with pytest.raises(UserError, match=r"domain 'night' of .* has 1 images without a label: label all"):
        load_folders(pets / "list.csv", size=4)


def test_a_cache_that_cannot_be_written_costs_time_only(pets, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "folders").write_text("a file in the way")
    assert load_folders(pets, size=4).sizes == (5, 4)
