"""One image file as an array."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fedctta.data.decode_file import decode_file, decode_or_tell


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


def test_damaged_facts_of_a_camera_are_told(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    turned[0x0128] = 2  # the unit of resolution
    path = save(tmp_path / "x.jpg", random(4, 6), exif=turned)
    entry = bytes.fromhex("0128 0003 00000001")
    content = path.read_bytes()
    assert entry in content
    path.write_bytes(content.replace(entry, bytes.fromhex("0128 0002 00000001")))  # said to be a text
    assert isinstance(decode_or_tell(path, None), str)


def test_what_cannot_be_read_is_told(tmp_path):
    path = save(tmp_path / "x.png", random(4, 4))
    np.testing.assert_array_equal(decode_or_tell(path, None), random(4, 4))
    path.write_bytes(path.read_bytes()[:40])
    assert isinstance(decode_or_tell(path, None), str)
    assert decode_or_tell(tmp_path / "gone.png", None) == "[Errno 2] No such file or directory:"
