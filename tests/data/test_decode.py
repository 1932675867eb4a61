"""Image files as one array."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedctta.data.decode import OtherSize, decode_file, decode_files, is_image


def save(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def random(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_a_picture_of_the_right_size_is_read_as_it_is(tmp_path):
    pixels = random(6, 6)
    path = save(tmp_path / "x.png", pixels)
    for size in (6, None):
        np.testing.assert_array_equal(decode_file(path, size), pixels)


def test_the_shorter_side_is_resized_and_the_middle_cut_out(tmp_path):
    wide = np.zeros((8, 24, 3), np.uint8)
    wide[:, 8:16] = 200
    small = decode_file(save(tmp_path / "wide.png", wide), 4)
    assert small.shape == (4, 4, 3)
    assert np.abs(small[:, 1:3].astype(int) - 200).max() < 20  # what is beyond the middle touches it little


def test_grey_and_palette_become_colours(tmp_path):
    grey = decode_file(save(tmp_path / "grey.png", np.full((4, 4), 7, np.uint8)), None)
    assert (grey == 7).all()
    assert grey.shape == (4, 4, 3)
    Image.fromarray(random(4, 4)).convert("P").save(tmp_path / "p.gif")
    assert decode_file(tmp_path / "p.gif", None).shape == (4, 4, 3)


def test_the_cameras_orientation_is_applied(tmp_path):
    pixels = random(4, 6)
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=turned)
    np.testing.assert_array_equal(decode_file(tmp_path / "x.png", None), pixels[::-1, ::-1])


def test_broken_files_are_told_and_others_kept_in_order(tmp_path):
    paths = [save(tmp_path / f"{k}.png", random(4, 4, k)) for k in range(3)]
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    deep = tmp_path / "deep.png"
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep)
    decoded = decode_files([*paths, deep, tmp_path / "gone.png"], None, progress=False)
    assert decoded.good.tolist() == [True, False, True, False, False]
    np.testing.assert_array_equal(decoded.images, [random(4, 4, 0), random(4, 4, 2)])
    assert set(decoded.broken) == {str(paths[1]), str(deep), str(tmp_path / "gone.png")}
    assert "more than 8 bits" in decoded.broken[str(deep)]


def test_different_sizes_need_a_size(tmp_path):
    paths = [save(tmp_path / "a.png", random(4, 4)), save(tmp_path / "b.png", random(5, 4))]
    with pytest.raises(OtherSize, match=r"b.png differs in size from others \(5 x 4 and 4 x 4\): add size=64"):
        decode_files(paths, None, progress=False)
    assert decode_files(paths, 3, progress=False).images.shape == (2, 3, 3, 3)


def test_nothing_readable_is_an_empty_array(tmp_path):
    assert decode_files([tmp_path / "gone.png"], 4, progress=False).images.shape == (0, 0, 0, 3)


def test_image_files_are_known_by_their_names(tmp_path):
    names = ("x.PNG", "x.jpeg", "x.webp", "x.txt", ".x.png", "png")
    assert [is_image(tmp_path / name) for name in names] == [True, True, True, False, False, False]
