from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedctta.data import scenes
from fedctta.data.mask_layouts import LABEL_IDS, LAYOUTS
from fedctta.data.masked import load_masked, scenes_domains, with_more_classes
from fedctta.errors import UserError

SIDE = 8


def put(path: Path, values: np.ndarray | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)


def put_pair(image: Path, mask: Path, values: np.ndarray | int, level: int = 100) -> None:
    """Write a plain image of one grey level, and a mask."""
    values = np.broadcast_to(np.asarray(values, np.uint8), (SIDE, SIDE))
    put(image, np.full((*values.shape, 3), level))
    put(mask, values)


@pytest.fixture
def generic(tmp_path: Path) -> Path:
    """Two domains: "a" with two images (classes 0 and 1, 2 and 255), "b" with one."""
    for domain, stem, level in (("a", "x", 10), ("a", "y", 20), ("b", "x", 30)):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[:4] = 1 if stem == "x" else 2
        mask[0, 0] = 255 if stem == "y" else 1
        put_pair(tmp_path / domain / "images" / f"{stem}.png", tmp_path / domain / "masks" / f"{stem}.png", mask, level)
    return tmp_path


def complaint(*args, **options) -> str:
    with pytest.raises(UserError) as error:
        load_masked(*args, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_generic_folders(generic):
    data = load_masked(generic)
    assert data.names == ("a", "b")
    assert {name: x.shape for name, x in data.images.items()} == {"a": (2, 8, 8, 3), "b": (1, 8, 8, 3)}
    assert {x.dtype for x in (*data.images.values(), *data.labels.values())} == {np.dtype(np.uint8)}
    assert data.images["a"][:, 0, 0, 0].tolist() == [10, 20]
    assert data.labels["a"][:, :, 0].tolist() == [[1] * 4 + [0] * 4, [255] + [2] * 3 + [0] * 4]
    assert data.classes == ("class 0", "class 1", "class 2")
    assert "layout folders" in data.notes[0]
    assert "3 images" in data.notes[0]
    assert load_masked(generic, "folders", classes=("g", "h", "i", "j")).classes == ("g", "h", "i", "j")


def test_a_list_of_classes_names_those_no_mask_holds(generic):
    (generic / "classes.txt").write_text("sky\n\nroad\ncar\nrider\n", encoding="utf-8-sig")
    data = load_masked(generic)
    assert data.classes == ("sky", "road", "car", "rider")
    assert with_more_classes(data, ["a"] * 5) is data, "names that are given stay"
    assert load_masked(generic, classes=("g", "h", "i")).classes == ("g", "h", "i")
    for text, said in (
        ("sky", "has 1 class names"),
        ("a\nb\na\n", "names a twice"),
        ("a\nb\n", "value 2, which is no"),
    ):
        (generic / "classes.txt").write_text(text)
        assert said in complaint(generic)
    (generic / "classes.txt").write_bytes(b"\xff\xfe\xff")
    assert "write one class name a line" in complaint(generic)


def test_classes_that_were_counted_may_be_more(generic):
    data = load_masked(generic)
    assert with_more_classes(data, ("g", "h", "i", "j")).classes == ("g", "h", "i", "j")
    assert with_more_classes(data, ("g", "h")) is data
    assert with_more_classes(data, ()) is data


def test_resizing_keeps_masks_whole_and_smooths_images(tmp_path):
    values = np.repeat([0, 2], 8)[None].repeat(12, 0)
    put(tmp_path / "a" / "images" / "x.png", (values * 100)[..., None].repeat(3, 2))
    put(tmp_path / "a" / "masks" / "x.png", values)
    data = load_masked(tmp_path, size=(6, 20))
    assert data.images["a"].shape == (1, 6, 20, 3)
    assert set(np.unique(data.labels["a"])) == {0, 2}
    assert data.labels["a"][0, 0].tolist() == [0] * 10 + [2] * 10
    assert set(np.unique(data.images["a"])) > {0, 200}
    assert load_masked(tmp_path, size=4).labels["a"].shape == (1, 4, 4)


@pytest.mark.parametrize("trained", [False, True])
def test_cityscapes(tmp_path, trained):
    kind = "labelTrainIds" if trained else "labelIds"
    values = np.zeros((SIDE, SIDE), np.uint8)
    stored = list(range(19)) if trained else list(LABEL_IDS)
    values.flat[:19] = stored
    values.flat[19:] = 255 if trained else 4
    for city in ("ulm", "bonn"):
        stem = f"{city}_000000_000019"
        image = tmp_path / "leftImg8bit" / "val" / city / f"{stem}_leftImg8bit.png"
        put_pair(image, tmp_path / "gtFine" / "val" / city / f"{stem}_gtFine_{kind}.png", values)
    # a test set without masks is passed over
    put(tmp_path / "leftImg8bit" / "test" / "berlin" / "berlin_1_leftImg8bit.png", np.zeros((SIDE, SIDE, 3)))
    data = load_masked(tmp_path)
    assert data.names == ("bonn", "ulm")
    assert data.labels["ulm"].ravel()[:20].tolist() == [*range(19), 255]
    assert len(data.classes) == 19
    assert (data.classes[0], data.classes[10], data.classes[18]) == ("road", "sky", "bicycle")
    assert "layout cityscapes, split val" in data.notes[0]
    assert "berlin_1_leftImg8bit.png has no mask" in complaint(tmp_path, split="test")
    assert "split train" in complaint(tmp_path, split="train")


@pytest.mark.parametrize(("kind", "stored"), [("labelTrainIds", 13), ("labelIds", 26)])
def test_acdc(tmp_path, kind, stored):
    for weather, split in (("fog", "train"), ("night", "train"), ("fog", "val")):
        folder = Path(weather, split, "GOPR0475")
        stem = f"GOPR0475_frame_{split}"
        mask = tmp_path / "gt" / folder / f"{stem}_gt_{kind}.png"
        put_pair(tmp_path / "rgb_anon" / folder / f"{stem}_rgb_anon.png", mask, stored)
        put(mask.with_name(f"{stem}_gt_labelColor.png"), np.zeros((SIDE, SIDE, 3)))
    data = load_masked(tmp_path, split="train")
    assert data.names == ("fog", "night")
    assert (data.labels["night"] == 13).all()
    assert data.classes[13] == "car"
    assert load_masked(tmp_path, "acdc").names == ("fog",)  # the first split with masks is val


def test_fundus(tmp_path):
    values = np.zeros((SIDE, SIDE), np.uint8)
    values[0], values[1], values[2] = 255, 128, 120
    for domain in ("Domain1", "Domain2"):
        for split in ("train", "test"):
            place = tmp_path / domain / split / "ROIs"
            put_pair(place / "image" / "g1.png", place / "mask" / "g1.png", values)
    data = load_masked(tmp_path)
    assert data.names == ("Domain1", "Domain2")
    assert data.classes == ("background", "disc", "cup")
    assert data.labels["Domain2"][0, :, 0].tolist() == [0, 1, 1, 2, 2, 2, 2, 2]
    assert len(data.images["Domain1"]) == 1
    assert "split test" in data.notes[0]


@pytest.mark.parametrize("white", [1, 255])
def test_sites_with_slices(tmp_path, white):
    values = np.zeros((SIDE, SIDE), np.uint8)
    values[5] = white
    put_pair(tmp_path / "RUNMC" / "image" / "s1.png", tmp_path / "RUNMC" / "mask" / "s1.png", values)
    put(tmp_path / "BMC" / "image" / "s1.png", np.full((SIDE, SIDE), 7))  # slices are grey
    put(tmp_path / "BMC" / "mask" / "s1.png", np.repeat(values[..., None], 3, 2))  # grey stored as colours
    data = load_masked(tmp_path)
    assert data.names == ("BMC", "RUNMC")
    assert data.images["BMC"][0, 0, 0].tolist() == [7, 7, 7]
    assert data.labels["BMC"][0, :, 0].tolist() == data.labels["RUNMC"][0, :, 0].tolist() == [0] * 5 + [1, 0, 0]
    assert data.classes == ("background", "object")


def test_masks_with_a_palette_or_one_bit(tmp_path):
    for name, mode in (("a", "P"), ("b", "1")):
        put(tmp_path / name / "images" / "x.png", np.zeros((SIDE, SIDE, 3)))
        (tmp_path / name / "masks").mkdir()
        mask = Image.new(mode, (SIDE, SIDE), 1)
        if mode == "P":
            mask.putpalette([0, 0, 0, 200, 10, 10])
        mask.save(tmp_path / name / "masks" / "x.png")
    data = load_masked(tmp_path)
    assert (data.labels["a"] == 1).all()
    assert (data.labels["b"] == 1).all()


def test_no_folder_and_nothing_recognised(tmp_path):
    assert "there is no folder" in complaint(tmp_path / "none")
    (tmp_path / "a" / "pictures").mkdir(parents=True)
    message = complaint(tmp_path)
    assert all(layout.about in message for layout in LAYOUTS.values())
    assert "sites" not in complaint(tmp_path, "acdc")
    with pytest.raises(UserError, match="did you mean cityscapes"):
        load_masked(tmp_path, "cityscape")


def test_an_image_without_its_mask(generic):
    (generic / "b" / "masks" / "x.png").unlink()
    assert f"{generic / 'b' / 'images' / 'x.png'} has no mask" in complaint(generic)


def test_sizes_differ(generic):
    put(generic / "b" / "masks" / "x.png", np.zeros((SIDE, SIDE + 1)))
    assert "is 8 x 8 and its mask 8 x 9" in complaint(generic, size=4)
    put(generic / "b" / "images" / "x.png", np.zeros((SIDE, SIDE + 1, 3)))
    assert "is 8 x 9, others 8 x 8: give a size" in complaint(generic)
    assert load_masked(generic, size=8).images["b"].shape == (1, 8, 8, 3)
    assert "at least 1 x 1" in complaint(generic, size=(0, 8))


def test_values_out_of_range(generic):
    assert "y.png holds the value 2, which is no class" in complaint(generic, classes=("g", "h"))
    put_pair(generic / "c" / "image" / "z.png", generic / "c" / "mask" / "z.png", 2)
    assert "z.png holds the value 2" in complaint(generic, "sites")
    wide = Image.fromarray(np.full((SIDE, SIDE), 300, np.uint16))
    wide.save(generic / "b" / "masks" / "x.png")
    assert "beyond 0..255" in complaint(generic, "folders")
    put(generic / "b" / "masks" / "x.png", np.arange(SIDE * SIDE * 3).reshape(SIDE, SIDE, 3))
    assert "is a colour picture" in complaint(generic, "folders")


def test_images_of_sixteen_bits(generic):
    Image.fromarray(np.full((SIDE, SIDE), 300, np.uint16)).save(generic / "b" / "images" / "x.png")
    assert "more than 8 bits" in complaint(generic)


def test_masks_that_say_nothing(tmp_path):
    put_pair(tmp_path / "a" / "images" / "x.png", tmp_path / "a" / "masks" / "x.png", 255)
    assert "ignored (255) everywhere" in complaint(tmp_path)
    put_pair(tmp_path / "a" / "images" / "x.png", tmp_path / "a" / "masks" / "x.png", np.eye(SIDE) * 255)
    assert "for masks of 0 and 255 use sites" in complaint(tmp_path)


def test_the_cameras_orientation_is_applied(tmp_path):
    """As the picture was shown to whoever drew its mask."""
    turned = Image.Exif()
    turned[0x0112] = 6  # by a quarter
    stored = np.arange(4 * SIDE, dtype=np.uint8).reshape(4, SIDE)
    mask = np.repeat([[0, 1, 2, 1]], SIDE, 0)
    put(tmp_path / "a" / "masks" / "x.png", mask)
    (tmp_path / "a" / "images").mkdir()
    Image.fromarray(stored).save(tmp_path / "a" / "images" / "x.png", exif=turned)
    data = load_masked(tmp_path)
    np.testing.assert_array_equal(data.images["a"][0, :, :, 0], np.rot90(stored, -1))
    np.testing.assert_array_equal(data.labels["a"][0], mask)


def test_damaged_files(generic):
    (generic / "a" / "images" / "x.png").write_bytes(b"no image")
    assert "x.png is damaged or no image" in complaint(generic)


def test_scenes_through_every_shift():
    data = scenes_domains()
    test = scenes.load("test")
    assert data.names == tuple(scenes.SHIFTS)
    assert data.classes == scenes.CLASSES
    for name in data.names:
        assert data.labels[name] is test.masks
        assert np.array_equal(data.images[name], scenes.SHIFTS[name](test.images, 0))
    assert "version 1" in data.notes[0]


def test_scenes_by_name():
    data = scenes_domains(("night", "clean"), seed=1)
    assert data.names == ("night", "clean")
    assert data.images["clean"] is scenes.load("test").images
    assert not np.array_equal(data.images["night"], scenes_domains(("night",)).images["night"])
    with pytest.raises(UserError, match="did you mean snow"):
        scenes_domains(("snows",))
