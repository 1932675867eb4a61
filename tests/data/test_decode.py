"""Image files as one array."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedctta.data.decode import OtherSize, decode_files, is_image


def save(path, pixels, **options):
    Image.fromarray(pixels).save(path, **options)
    return path


def random(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


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


def test_many_files_are_decoded_by_processes_alike(tmp_path, monkeypatch):
    paths = [save(tmp_path / f"{k}.png", random(4 + k % 2, 5, k)) for k in range(9)]
    few = decode_files([*paths, tmp_path / "gone.png"], 3, progress=False)
    monkeypatch.setattr("fedctta.data.decode.MANY", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    many = decode_files([*paths, tmp_path / "gone.png"], 3, progress=False)
    np.testing.assert_array_equal(few.images, many.images)
    assert (few.good.tolist(), few.broken) == (many.good.tolist(), many.broken)


def test_nothing_readable_is_an_empty_array(tmp_path):
    assert decode_files([tmp_path / "gone.png"], 4, progress=False).images.shape == (0, 0, 0, 3)


def test_image_files_are_known_by_their_names(tmp_path):
    names = ("x.PNG", "x.jpeg", "x.webp", "x.txt", ".x.png", "png")
    assert [is_image(tmp_path / name) for name in names] == [True, True, True, False, False, False]
