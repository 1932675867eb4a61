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
from fedctta.data.editions import CIFAR10, CIFAR100, Edition
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
    with pytest.raises(UserError, match=r"test_batch is damaged \(.*mkdir has no place in a data file\)"):
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
    content = layouts.ArraysOnly(io.BytesIO(old), encoding="bytes").load()
    np.testing.assert_array_equal(content[b"data"], rows)


def complaint(folder: Path, edition: Edition, split: str = "test") -> str:
    """Return the one line with which a folder is refused, which must not be that it holds no such data set."""
    with pytest.raises(UserError) as caught:
        layouts.read_folder(folder, edition, split)
    message = str(caught.value)
    assert not isinstance(caught.value, layouts.Absent)
    assert "\n" not in message
    assert message.endswith("; get it anew")
    return message


def rows(n: int, size: int = 3072, dtype: type = np.uint8) -> np.ndarray:
    return np.zeros((n, size), dtype)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is damaged"),
        (b"not a pickle", "is damaged"),
        (b"\x80\x02}", "is damaged"),
        (b"\x80\x04h\x07.", "is damaged"),
        (b"(i\n\n.", "is damaged"),
        (pickle.dumps({b"data": rows(2)})[:-3000], "is damaged"),
        (pickle.dumps([1]), "holds no batch"),
        (pickle.dumps({b"fine_labels": [0]}), 'has no "data"'),
        (pickle.dumps({b"data": [0] * 3072, b"fine_labels": [0]}), 'has no "data"'),
        (pickle.dumps({b"data": rows(2, 3000), b"fine_labels": [0, 1]}), 'has no "data"'),
        (pickle.dumps({b"data": rows(2).ravel(), b"fine_labels": [0, 1]}), 'has no "data"'),
        (pickle.dumps({b"data": rows(2, dtype=float), b"fine_labels": [0, 1]}), 'has no "data"'),
        (pickle.dumps({b"data": rows(2)}), 'has no "fine_labels" for its 2'),
        (pickle.dumps({b"data": rows(2), b"labels": [0, 1]}), 'has no "fine_labels" for its 2'),
        (pickle.dumps({b"data": rows(2), b"fine_labels": [0]}), 'has no "fine_labels" for its 2'),
        (pickle.dumps({b"data": rows(2), b"fine_labels": [0, "x"]}), "invalid literal"),
        (pickle.dumps({b"data": rows(2), b"fine_labels": [0, 10**30]}), "too large"),
        (pickle.dumps({b"data": rows(2), b"fine_labels": [0, 1]}), "does not hold the published cifar100 test set"),
    ],
)
def test_damaged_pickles_are_told_in_one_line(tmp_path: Path, content: bytes, reason: str):
    (tmp_path / "test").write_bytes(content)
    assert reason in complaint(tmp_path, CIFAR100)


@pytest.mark.parametrize("layout", ["pickles", "binary", "strips"])
@pytest.mark.parametrize("kept", [0, 10, 0.5, -1])
def test_a_file_cut_anywhere_is_told(tmp_path: Path, tiny_cifar: ModuleType, layout: str, kept: float):
    getattr(tiny_cifar, f"write_{layout}")(tmp_path, "cifar100")
    file = tmp_path / {"pickles": "test", "binary": "test.bin", "strips": "test_batch.png"}[layout]
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * kept) if kept == 0.5 else int(kept)])
    if (layout, kept) != ("strips", -1):  # the last byte of a PNG file says nothing about its pixels
        complaint(tmp_path, tiny_cifar.EDITIONS["cifar100"])


@pytest.mark.parametrize("inside", ["", "cifar-files"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_class_folders_give_the_same_images_class_by_class(
    tmp_path: Path, tiny_cifar: ModuleType, name: str, inside: str
):
    tiny_cifar.write_class_folders(tmp_path / inside, name)
    for split in SPLITS:
        data = layouts.read_folder(tmp_path, tiny_cifar.EDITIONS[name], split)
        expected = tiny_cifar.in_class_order(name, split)
        np.testing.assert_array_equal(data.images, expected.images)
        np.testing.assert_array_equal(data.labels, expected.labels)
        assert (data.images.dtype, data.labels.dtype) == (np.uint8, np.int64)
        assert data.classes == expected.classes


def test_class_folders_may_be_spelt_otherwise(tmp_path: Path, tiny_cifar: ModuleType):
    for name, spelt in (("cifar100", "{1}-{0}"), ("cifar10", "{0}")):
        tiny_cifar.write_class_folders(tmp_path / name, name)
        for i, place in enumerate(sorted((tmp_path / name / "test").iterdir())):
            other = {"airplane": "plane", "automobile": "car"}.get(place.name, place.name)
            place.rename(place.with_name(spelt.format(other.replace("_", " ").title(), i)))
        data = layouts.read_folder(tmp_path, tiny_cifar.EDITIONS[name], "test")
        np.testing.assert_array_equal(data.labels, tiny_cifar.in_class_order(name, "test").labels)


@pytest.fixture
def class_folders(tmp_path: Path, tiny_cifar: ModuleType) -> Path:
    """CIFAR-100 in class folders."""
    tiny_cifar.write_class_folders(tmp_path, "cifar100")
    return tmp_path


def refused(folder: Path, tiny_cifar: ModuleType) -> str:
    return complaint(folder, tiny_cifar.EDITIONS["cifar100"])


def test_a_missing_class_is_named(class_folders: Path, tiny_cifar: ModuleType):
    (class_folders / "test" / "aquarium_fish").rename(class_folders / "test" / "fish")
    assert ": test has no folder aquarium_fish;" in refused(class_folders, tiny_cifar)


def test_missing_and_extra_images_are_counted(class_folders: Path, tiny_cifar: ModuleType):
    picture = next(class_folders.glob("test/*/*.png"))
    picture.with_suffix(".PNG").with_stem("more").write_bytes(picture.read_bytes())
    assert ": test has 5 images, not 4;" in refused(class_folders, tiny_cifar)
    picture.unlink()
    next(class_folders.glob("test/*/more.PNG")).unlink()
    assert ": test has 3 images, not 4;" in refused(class_folders, tiny_cifar)


def test_an_image_of_another_size_is_named(class_folders: Path, tiny_cifar: ModuleType):
    picture = next(class_folders.glob("test/*/*.png"))
    Image.new("RGB", (64, 32)).save(picture)
    name = picture.relative_to(class_folders)
    assert f": {name} is 64 x 32, not 32 x 32;" in refused(class_folders, tiny_cifar)


@pytest.mark.parametrize("kept", [0, 4, 40, 1000])
def test_a_damaged_image_is_named(class_folders: Path, tiny_cifar: ModuleType, kept: int):
    picture = next(class_folders.glob("test/*/*.png"))
    picture.write_bytes(picture.read_bytes()[:kept])
    name = picture.relative_to(class_folders)
    assert f": {name} is damaged or no PNG file;" in refused(class_folders, tiny_cifar)


def test_an_image_in_the_wrong_class_or_changed_is_noticed(class_folders: Path, tiny_cifar: ModuleType):
    picture = next(class_folders.glob("test/*/*.png"))
    pixels = np.array(Image.open(picture))
    elsewhere = next(place for place in (class_folders / "test").iterdir() if place != picture.parent)
    moved = picture.rename(elsewhere / "moved.png")
    assert "does not hold the published cifar100 test set" in refused(class_folders, tiny_cifar)
    moved.unlink()
    pixels[3, 4, 1] ^= 1
    Image.fromarray(pixels).save(picture)
    assert "does not hold the published cifar100 test set" in refused(class_folders, tiny_cifar)


def test_class_folders_of_the_other_set_are_none_of_this(class_folders: Path, tiny_cifar: ModuleType):
    with pytest.raises(layouts.Absent, match=r"or test/CLASS/\*\.png"):
        layouts.read_folder(class_folders, tiny_cifar.EDITIONS["cifar10"], "test")


def test_numbers_in_file_names_are_sorted_by_size():
    names = ["b1.png", "a10.png", "a9.png", "a.png", "a09.png", "7.png"]
    assert sorted(map(Path, names), key=layouts._natural) == [
        Path(name) for name in ("7.png", "a09.png", "a9.png", "a10.png", "a.png", "b1.png")
    ]


def test_no_order_changes_the_unordered_checksum_and_all_else_does(tiny_cifar: ModuleType):
    data = tiny_cifar.pictures("cifar10", "train")
    images, labels = data.images, data.labels
    digest = layouts.unordered(images, labels)
    assert digest == layouts.unordered(images[::-1], labels[::-1])
    assert len(bytes.fromhex(digest)) == 32
    twice = [0, *range(1, len(labels) - 1), 0]
    for other in (layouts.unordered(images, np.roll(labels, 1)), layouts.unordered(images[twice], labels[twice])):
        assert other != digest


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
