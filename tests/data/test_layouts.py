from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from fedctta.data import layouts
from fedctta.data.cache import SPLITS
from fedctta.data.editions import CIFAR10
from fedctta.errors import UserError

LAYOUTS = [(layout, name) for layout in ("pickles", "binary", "strips") for name in ("cifar10", "cifar100")]


@pytest.mark.parametrize("inside", ["", "cifar-files"])
@pytest.mark.parametrize(("layout", "name"), [*LAYOUTS, ("npm_strips", "cifar10")])
def test_every_layout_gives_the_same_arrays(
    tmp_path: Path, tiny_cifar: ModuleType, layout: str, name: str, inside: str
):
    (tmp_path / inside).mkdir(exist_ok=True)
    getattr(tiny_cifar, f"write_{layout}")(tmp_path / inside, name)
    for split in SPLITS:
        data = layouts.read_folder(tmp_path, tiny_cifar.EDITIONS[name], split)
        expected = tiny_cifar.pictures(name, split)
        np.testing.assert_array_equal(data.images, expected.images)
        np.testing.assert_array_equal(data.labels, expected.labels)
        assert data.images.dtype == np.uint8
        assert data.labels.dtype == np.int64
        assert data.classes == expected.classes


def test_a_folder_may_hold_both_sets_and_each_is_found(tmp_path: Path, tiny_cifar: ModuleType):
    for name in tiny_cifar.EDITIONS:
        (tmp_path / name).mkdir()
        tiny_cifar.write_strips(tmp_path / name, name)
    for name, edition in tiny_cifar.EDITIONS.items():
        data = layouts.read_folder(tmp_path, edition, "test")
        np.testing.assert_array_equal(data.images, tiny_cifar.pictures(name, "test").images)


@pytest.mark.parametrize("archive", ["cifar-10-python.tar.gz", "no-such-package-0.0.0.tgz"])
def test_a_folder_may_hold_an_archive(tmp_path: Path, tiny_cifar: ModuleType, archive: str):
    (tmp_path / "files").mkdir()
    (tmp_path / "folder").mkdir()
    tiny_cifar.write_pickles(tmp_path / "files", "cifar10")
    tiny_cifar.tar(tmp_path / "files", tmp_path / "folder" / archive)
    data = layouts.read_folder(tmp_path / "folder", tiny_cifar.EDITIONS["cifar10"], "train")
    assert len(data) == 5 * tiny_cifar.PER_BATCH


def test_an_archive_with_changed_pictures_is_named_itself(tmp_path: Path, tiny_cifar: ModuleType):
    (tmp_path / "files").mkdir()
    (tmp_path / "folder").mkdir()
    tiny_cifar.write_binary(tmp_path / "files", "cifar10")
    tiny_cifar.damage(tmp_path / "files" / "test_batch.bin")
    archive = tmp_path / "folder" / "cifar-10-python.tar.gz"
    tiny_cifar.tar(tmp_path / "files", archive)
    with pytest.raises(UserError, match=f"^{archive} does not hold the published"):
        layouts.read_folder(tmp_path / "folder", tiny_cifar.EDITIONS["cifar10"], "test")


def test_changed_pictures_are_refused(tmp_path: Path, tiny_cifar: ModuleType):
    tiny_cifar.write_binary(tmp_path, "cifar10")
    tiny_cifar.damage(tmp_path / "test_batch.bin")
    with pytest.raises(UserError, match="does not hold the published cifar10 test set") as caught:
        layouts.read_folder(tmp_path, tiny_cifar.EDITIONS["cifar10"], "test")
    assert not isinstance(caught.value, layouts.Absent)


def test_a_folder_without_the_set_is_told_apart_and_says_what_to_name(tmp_path: Path, tiny_cifar: ModuleType):
    tiny_cifar.write_strips(tmp_path, "cifar100")
    message = r"holds no cifar10 test set; name a folder with cifar-10-python\.tar\.gz"
    with pytest.raises(layouts.Absent, match=message) as caught:
        layouts.read_folder(tmp_path, tiny_cifar.EDITIONS["cifar10"], "test")
    assert "\n" not in str(caught.value)


class Attack:
    """Pickles into a call of a function of the caller's choice."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


def test_a_pickle_can_call_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Attack()}))
    with pytest.raises(UserError, match="has no place in a data file"):
        layouts.read_folder(tmp_path, CIFAR10, "test")
    assert not (tmp_path / "attacked").exists()


def test_pickles_of_the_old_numpy_and_python_are_read():
    # what Python 2 and numpy 1 wrote: protocol 2, numpy.core, and text as raw bytes
    rows = np.arange(6, dtype=np.uint8)
    old = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x06\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89U\x06" + rows.tobytes() + b"tbs."
    )
    content = layouts._ArraysOnly(io.BytesIO(old), encoding="bytes").load()
    np.testing.assert_array_equal(content[b"data"], rows)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"\x80\x02}", pickle.dumps([1])])
def test_damaged_files_are_a_user_error(tmp_path: Path, content: bytes):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(UserError, match="cannot read cifar10") as caught:
        layouts.read_folder(tmp_path, CIFAR10, "test")
    assert not isinstance(caught.value, layouts.Absent)


def test_a_picture_that_is_no_strip_is_refused(tmp_path: Path):
    Image.new("RGB", (1000, 2)).save(tmp_path / "test_batch.png")
    (tmp_path / "labels.json").write_text('{"test": [0, 0]}')
    with pytest.raises(UserError, match="not rows of square RGB images"):
        layouts.read_folder(tmp_path, CIFAR10, "test")


def test_strips_of_any_square_size_are_read(tmp_path: Path):
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    Image.fromarray(images.reshape(3, 64, 3)).save(tmp_path / "strip.png")
    np.testing.assert_array_equal(layouts.read_strip(tmp_path / "strip.png"), images)


def test_archive_members_cannot_leave_the_folder(tmp_path: Path):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as members:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        members.addfile(member, io.BytesIO(b"x"))
    (tmp_path / "deep" / "to").mkdir(parents=True)
    layouts.unpack(archive, tmp_path / "deep" / "to")
    assert [path.name for path in (tmp_path / "deep" / "to").iterdir()] == ["escaped"]
    assert not (tmp_path / "escaped").exists()


def test_a_broken_archive_is_a_user_error(tmp_path: Path):
    (tmp_path / "a.tgz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot unpack"):
        layouts.unpack(tmp_path / "a.tgz", tmp_path)
