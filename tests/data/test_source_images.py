"""Images of the source for methods that study it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedctta.data.domains import Domains
from fedctta.data.source_images import load_source_images, source_files, source_note
from fedctta.errors import UserError


@pytest.fixture
def data():
    images = np.random.default_rng(0).integers(0, 256, (7, 6, 6, 3), np.uint8)
    return Domains(("a", "b"), {"a": images, "b": images[:3]})


def test_a_folder_is_read_in_order_and_resized(data, tmp_path):
    for k in range(3):
        Image.fromarray(np.full((12, 12, 3), 10 * k, np.uint8)).save(tmp_path / f"{k}.png")
    found = load_source_images(str(tmp_path), data, 2)
    assert found.shape == (2, 6, 6, 3)
    assert found[:, 0, 0, 0].tolist() == [0, 10]
    assert [path.name for path in source_files(str(tmp_path))] == ["0.png", "1.png", "2.png"]
    assert "from" in source_note(str(tmp_path), data)


def test_an_array_must_fit_the_data(data, tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, data.images["a"][:4])
    np.testing.assert_array_equal(load_source_images(str(file), data, 3), data.images["a"][:3])
    np.save(file, np.zeros((4, 6, 6, 3), np.float32))
    with pytest.raises(UserError, match=r"are float32 \[6, 6, 3\] and the data uint8 \[6, 6, 3\]: give"):
        load_source_images(str(file), data, 3)
    file.write_bytes(b"x")
    with pytest.raises(UserError, match="cannot be read"):
        load_source_images(str(file), data, 3)


def test_images_of_the_first_domain_may_stand_in(data):
    found = load_source_images("5", data, 100)
    known = {image.tobytes() for image in data.images["a"]}
    assert {image.tobytes() for image in found} <= known
    assert len(found) == 5
    assert len(load_source_images("5", data, 2)) == 2
    assert "images of a stand in" in source_note("5", data)
    for wrong in ("0", "8"):
        with pytest.raises(UserError, match=f"source_images={wrong} must lie between 1 and 7, the images of a"):
            load_source_images(wrong, data, 100)


def test_what_is_not_there_is_told(data, tmp_path):
    with pytest.raises(UserError, match=r"there is no source_images=.*gone: give a folder"):
        load_source_images(str(tmp_path / "gone"), data, 3)
    with pytest.raises(UserError, match="holds no image that can be read"):
        load_source_images(str(tmp_path), data, 3)
