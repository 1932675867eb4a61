from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedctta.data import cache, catalogue, cifar, corrupted, shapes
from fedctta.data.corruptions import BENCHMARK, VERSION, corrupt
from fedctta.data.corruptions.textures import PACKAGE, STAND_IN, Textures, stand_in
from fedctta.data.editions import CIFAR10
from fedctta.data.public import load_split
from fedctta.data.public_sets import FETCHED
from fedctta.errors import UserError

CLEAN = shapes.draw(12, 0)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, tiny test sets, and no network for the frost pictures."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cifar, "load", lambda *_: CLEAN)
    monkeypatch.setattr(shapes, "load", lambda *_: CLEAN)
    monkeypatch.setattr(corrupted, "frost_textures", stand_in)


def test_all_domains_are_generated_in_order_with_the_clean_labels():
    domains = corrupted.load_domains("cifar10-c")
    assert domains.names == tuple(domains.images) == BENCHMARK
    np.testing.assert_array_equal(domains.labels, CLEAN.labels)
    for name, images in domains.images.items():
        assert isinstance(images, np.memmap)
        assert images.shape == CLEAN.images.shape
        assert images.dtype == np.uint8
        assert not np.array_equal(images, CLEAN.images), name


def test_clean_images_are_a_domain_like_any_other():
    data = corrupted.load_domains("shapes-c", names=("fog", "clean"), progress=False)
    assert data.names == ("fog", "clean")
    assert (data.images["clean"] == CLEAN.images).all()


def test_a_domain_is_what_corrupt_gives():
    domains = corrupted.load_domains("cifar10-c", 3, names=("fog", "contrast"), seed=7)
    assert domains.names == ("fog", "contrast")
    np.testing.assert_array_equal(domains.images["fog"], corrupt(CLEAN.images, "fog", 3, 7))
    np.testing.assert_array_equal(domains.images["contrast"], corrupt(CLEAN.images, "contrast", 3, 7))


def test_the_second_call_makes_nothing(monkeypatch: pytest.MonkeyPatch):
    first = corrupted.load_domains("shapes-c", names=("fog", "frost"))
    monkeypatch.setattr(corrupted, "corrupt", None)
    monkeypatch.setattr(corrupted, "stand_in", None)
    again = corrupted.load_domains("shapes-c", names=("fog", "frost"))
    assert again.notes == first.notes
    for name in first.names:
        np.testing.assert_array_equal(first.images[name], again.images[name])


def test_the_cache_tells_apart_all_a_domain_depends_on(monkeypatch: pytest.MonkeyPatch):
    paths = {
        corrupted.path_of("cifar10-c", "frost", 5, 0, PACKAGE),
        corrupted.path_of("cifar10-c", "frost", 5, 0, STAND_IN),
        corrupted.path_of("cifar10-c", "frost", 4, 0, PACKAGE),
        corrupted.path_of("cifar10-c", "frost", 5, 1, PACKAGE),
        corrupted.path_of("cifar10-c", "fog", 5, 0),
        corrupted.path_of("cifar100-c", "fog", 5, 0),
        corrupted.path_of("shapes-c", "fog", 5, 0),
    }
    monkeypatch.setattr(corrupted, "VERSION", VERSION + 1)
    paths.add(corrupted.path_of("cifar10-c", "fog", 5, 0))
    monkeypatch.setattr(shapes, "VERSION", shapes.VERSION + 1)
    paths.add(corrupted.path_of("shapes-c", "fog", 5, 0))
    assert len(paths) == 9


def test_a_damaged_domain_is_refused():
    corrupted.load_domains("cifar10-c", names=("fog",))
    path = corrupted.path_of("cifar10-c", "fog", 5, 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"fog.*damaged"):
        corrupted.load_domains("cifar10-c", names=("fog",))


def test_an_interrupted_run_keeps_what_was_finished(monkeypatch: pytest.MonkeyPatch):
    def stop(images: np.ndarray, name: str, *rest: int, **more: object) -> np.ndarray:
        if name == "contrast":
            raise KeyboardInterrupt
        return corrupt(images, name, *rest)

    monkeypatch.setattr(corrupted, "corrupt", stop)
    with pytest.raises(KeyboardInterrupt):
        corrupted.load_domains("cifar10-c", names=("fog", "contrast"))
    assert [(path.name[:3], state) for path, state in cache.check_folder(cache.cache_dir())] == [("fog", "ok")]


def test_a_stand_in_for_frost_is_announced_and_replaced_on_request(monkeypatch: pytest.MonkeyPatch):
    standing = corrupted.load_domains("cifar10-c", names=("frost",))
    assert "stand-in" in standing.notes[1]
    assert "fedctta data fetch cifar10-c" in standing.notes[1]

    true = Textures(tuple(255 - image for image in stand_in().images), PACKAGE)
    monkeypatch.setattr(corrupted, "frost_textures", lambda: true)
    assert corrupted.load_domains("cifar10-c", names=("frost",)).notes == standing.notes
    corrupted.forget_stand_in("cifar10-c", 5, 0)
    assert list(corrupted.cache_dir().rglob("frost*")) == []
    found = corrupted.load_domains("cifar10-c", names=("frost",))
    assert len(found.notes) == 1
    assert not np.array_equal(found.images["frost"], standing.images["frost"])


def test_shapes_never_look_for_frost_pictures(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corrupted, "frost_textures", None)
    assert "stand-in" in corrupted.load_domains("shapes-c", names=("frost",)).notes[1]


def test_without_a_writable_cache_shapes_stay_in_memory_and_others_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, array: np.ndarray) -> None:
        raise UserError("cannot write; set FEDCTTA_HOME")

    monkeypatch.setattr(corrupted, "save_array", refuse)
    images = corrupted.load_domains("shapes-c", names=("fog",)).images["fog"]
    np.testing.assert_array_equal(images, corrupt(CLEAN.images, "fog", 5, 0))
    with pytest.raises(UserError, match="FEDCTTA_HOME"):
        corrupted.load_domains("cifar10-c", names=("fog",))


def official(folder: Path, n: int = 4) -> dict[str, np.ndarray]:
    """Write three official-looking files of 5 n images whose values say severity and image."""
    folder.mkdir(parents=True)
    values = np.arange(5 * n, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    arrays = {"fog": values, "frost": values + 100, "labels": np.tile(np.arange(n, dtype=np.uint8), 5)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


@pytest.mark.parametrize("inside", ["", "CIFAR-10-C"])
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_official_files_are_used_as_they_are(tmp_path: Path, inside: str, severity: int):
    arrays = official(tmp_path / "official" / inside)
    domains = corrupted.load_domains("cifar10-c", severity, names=("frost", "fog"), folder=tmp_path / "official")
    assert domains.names == ("frost", "fog")
    assert domains.classes == CIFAR10.classes
    assert domains.labels.dtype == np.int64
    np.testing.assert_array_equal(domains.labels, np.arange(4))
    for name in domains.names:
        assert isinstance(domains.images[name], np.memmap)
        np.testing.assert_array_equal(domains.images[name], arrays[name][4 * (severity - 1) : 4 * severity])
    assert "official files" in domains.notes[0]
    assert not cache.cache_dir().exists()


def test_official_files_that_are_missing_or_wrong_are_named(tmp_path: Path):
    folder = tmp_path / "official"
    official(folder)
    with pytest.raises(UserError, match=r"has no snow\.npy"):
        corrupted.load_domains("cifar10-c", names=("fog", "snow"), folder=folder)
    np.save(folder / "snow.npy", np.zeros((20, 32, 32), np.uint8))
    with pytest.raises(UserError, match=r"snow\.npy is \(20, 32, 32\), not five severities"):
        corrupted.load_domains("cifar10-c", names=("snow",), folder=folder)
    np.save(folder / "snow.npy", np.zeros((20, 32, 32, 3)))
    with pytest.raises(UserError, match=r"snow\.npy holds float64, not uint8"):
        corrupted.load_domains("cifar10-c", names=("snow",), folder=folder)
    np.save(folder / "snow.npy", np.zeros((15, 32, 32, 3), np.uint8))
    with pytest.raises(UserError, match="15 images for 20 labels"):
        corrupted.load_domains("cifar10-c", names=("snow",), folder=folder)
    (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"snow\.npy is damaged"):
        corrupted.load_domains("cifar10-c", names=("snow",), folder=folder)


@pytest.mark.parametrize("inside", ["", "CIFAR-10-C"])
def test_an_official_folder_without_labels_is_refused_and_nothing_is_made_instead(tmp_path: Path, inside: str):
    official(tmp_path / "official" / inside)
    (tmp_path / "official" / inside / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"has no labels\.npy; add it"):
        corrupted.load_domains("cifar10-c", names=("fog",), folder=tmp_path / "official")
    assert not cache.cache_dir().exists()


@pytest.mark.parametrize("wrong", [10, -1, 1e6])
def test_official_labels_outside_the_classes_are_refused(tmp_path: Path, wrong: float):
    official(tmp_path / "official")
    labels = np.tile([0, 1, 2, wrong], 5)
    np.save(tmp_path / "official" / "labels.npy", labels.astype(np.int64))
    with pytest.raises(UserError, match=rf"labels\.npy hold {int(wrong)}: give 0 to 9"):
        corrupted.load_domains("cifar10-c", names=("fog",), folder=tmp_path / "official")
    np.save(tmp_path / "official" / "labels.npy", labels + 0.5)
    with pytest.raises(UserError, match=r"labels\.npy are float64"):
        corrupted.load_domains("cifar10-c", names=("fog",), folder=tmp_path / "official")


def test_a_folder_has_no_effect_on_drawings_and_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="drop folder"):
        corrupted.load_domains("shapes-c", names=("fog",), folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar-c"}, "unknown corrupted data set"),
        ({"severity": 6}, "no severity 6"),
        ({"severity": 0}, "no severity 0"),
        ({"names": ("fogg",)}, "did you mean fog"),
        ({"names": ("fog", "snow", "fog")}, "names fog twice"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        corrupted.load_domains(**{"name": "cifar10-c", **arguments})


def test_kept_severities():
    assert corrupted.kept_severities("shapes-c") == ()
    corrupted.load_domains("shapes-c", 2)
    corrupted.load_domains("shapes-c", 4, names=BENCHMARK[:-1])
    assert corrupted.kept_severities("shapes-c") == (2,)


def test_tiny_imagenet_is_corrupted_from_its_files(photos, monkeypatch):
    monkeypatch.setitem(FETCHED, "tiny-imagenet", FETCHED["photos"])
    data = corrupted.load_domains("tiny-imagenet-c", 3, names=("contrast", "clean"), folder=photos)
    clean = load_split("tiny-imagenet", "test")
    assert (data.classes, data.labels.tolist()) == (("n1", "n2"), clean.labels.tolist())
    np.testing.assert_array_equal(data.images["clean"], clean.images)
    np.testing.assert_array_equal(data.images["contrast"], corrupt(np.asarray(clean.images), "contrast", 3))
    assert catalogue.load("tiny-imagenet", "train").images.shape == (6, 8, 8, 3)
