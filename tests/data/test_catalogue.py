from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedctta.data import cache, catalogue, corrupted, shapes
from fedctta.data.editions import CIFAR100
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError

SMALL = shapes.draw(12, 0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shapes, "load", lambda split: SMALL)
    return tmp_path / "home"


def states() -> dict[str, str]:
    return {entry.name: entry.state for entry in catalogue.datasets()}


def test_every_set_is_listed_with_its_state(home: Path):
    assert states() == {
        "cifar10": "missing",
        "cifar100": "missing",
        "tiny-imagenet": "missing",
        "shapes": "embedded",
        "cifar10-c": "missing",
        "cifar100-c": "missing",
        "tiny-imagenet-c": "missing",
        "shapes-c": "embedded",
        **dict.fromkeys(PUBLIC, "missing"),
        "scenes": "embedded",
        "masked": "yours",
        "folders": "yours",
        "arrays": "yours",
    }
    cache.save_images(home / "cifar10", "test", SMALL)
    assert states()["cifar10"] == "cached (test only)"
    cache.save_images(home / "cifar10", "train", SMALL)
    assert states()["cifar10"] == "cached"
    assert all(entry.about for entry in catalogue.datasets())


def test_listing_writes_nothing(home: Path):
    catalogue.datasets()
    assert not home.exists()


def test_load_finds_each_set_by_name(home: Path, tmp_path: Path):
    assert catalogue.load("shapes", "test") is SMALL
    cache.save_images(home / "cifar100", "test", SMALL)
    data = catalogue.load("cifar100", "test")
    np.testing.assert_array_equal(data.images, SMALL.images)
    assert data.classes == CIFAR100.classes
    with pytest.raises(UserError, match="did you mean shapes"):
        catalogue.load("shape", "test")


def test_fetch_puts_a_corrupted_set_into_the_cache():
    notes = catalogue.fetch("shapes-c", severity=3)
    assert notes == corrupted.load_domains("shapes-c", 3).notes
    assert states()["shapes-c"] == "cached (severity 3)"
    assert catalogue.fetch("shapes") == ("train: 12 images", "test: 12 images")
    assert "nothing to fetch" in catalogue.fetch("scenes")[0]
    with pytest.raises(UserError, match="folder=PATH"):
        catalogue.fetch("masked")
    with pytest.raises(UserError, match="unknown data set"):
        catalogue.fetch("imagenet")


def test_fetch_refuses_what_has_no_effect(tmp_path: Path):
    with pytest.raises(UserError, match="severity=3 has no effect on scenes"):
        catalogue.fetch("scenes", severity=3)
    with pytest.raises(UserError, match="shapes are drawn here: drop folder"):
        catalogue.fetch("shapes", tmp_path)
    (tmp_path / "fog.npy").write_bytes(b"")
    with pytest.raises(UserError, match="read where they are: use them with folder="):
        catalogue.fetch("cifar10-c", tmp_path)


def test_check_and_repair_one_set_or_all(home: Path):
    cache.save_images(home / "cifar10", "test", SMALL)
    corrupted.load_domains("shapes-c", names=("fog",))
    broken = home / "cifar10" / "test-images.npy"
    broken.write_bytes(b"")
    assert [state for _, state in catalogue.check()] == ["damaged", "ok", "ok"]
    assert [state for _, state in catalogue.check("shapes-c")] == ["ok"]
    assert (broken, "damaged, removed") in catalogue.check("cifar10", repair=True)
    assert [state for _, state in catalogue.check()] == ["ok", "ok"]
    assert catalogue.check("cifar100") == []
    with pytest.raises(UserError, match="did you mean cifar10"):
        catalogue.check("cifar1")


def test_a_public_set_is_fetched_told_and_checked(pets: Path, home: Path):
    assert states()["pets"] == "missing"
    notes = catalogue.fetch("pets", pets)
    assert notes == PUBLIC["pets"].card()
    assert "by somebody; licence: free" in notes
    assert states()["pets"] == "cached"
    assert catalogue.check("pets") == [(home / "pets" / "files", "ok")]
    next((home / "pets" / "files" / "photo" / "cat").iterdir()).write_bytes(b"")
    assert [state for _, state in catalogue.check(repair=True)] == ["damaged, removed"]
    assert states()["pets"] == "missing"
    with pytest.raises(UserError, match="severity=3 has no effect on pets"):
        catalogue.fetch("pets", pets, severity=3)
