from __future__ import annotations

import numpy as np
import pytest

from fedctta.data import scenes
from fedctta.data.cache import sha256
from fedctta.errors import UserError


@pytest.fixture(scope="module")
def some() -> scenes.Scenes:
    return scenes.draw(60, 3)


def test_the_same_seed_gives_the_same_scenes_everywhere():
    data = scenes.draw(16, 0)
    assert sha256(data.images) == "297c8e0e5b8043184b56519dd33f3497b9609f45eec52d693981b274f25f3252"
    assert sha256(data.masks) == "8642c911d9e99c112764276bf58a1b1fcf3b00ace56f32530fe938101d899304"
    assert sha256(scenes.draw(16, 1).images) != sha256(data.images)


def test_form(some):
    assert some.images.shape == (60, 48, 48, 3)
    assert some.masks.shape == (60, 48, 48)
    assert some.images.dtype == some.masks.dtype == np.uint8
    assert some.classes == ("ground", "disc", "square", "cross", "ring")
    assert len(some) == 60


def test_splits_have_their_sizes_differ_and_cannot_be_changed():
    train, test = scenes.load("train"), scenes.load("test")
    assert (len(train), len(test)) == (2000, 400)
    assert not np.array_equal(train.masks[:400], test.masks)
    assert scenes.load("test") is test
    for array in (test.images, test.masks):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_every_class_has_its_share():
    share = np.bincount(scenes.load("test").masks.ravel()) / scenes.load("test").masks.size
    assert 0.5 < share[0] < 0.8
    assert len(share) == 5
    assert share[1:].min() > 0.04


def test_masks_are_exact():
    """Away from outlines, a pixel's colour is in its class's range: middle, spread, ripple, shade and noise."""
    data = scenes.load("test")
    same = np.ones(data.masks.shape, bool)
    for axis in (1, 2):
        for step in (-1, 1):
            same &= np.roll(data.masks, step, axis) == data.masks
    for label, middle in enumerate(scenes.OBJECTS.values(), 1):
        # a pixel between two objects of one class may hide an outline, but both its colours are in range
        inside = data.images[same & (data.masks == label)] / 255
        assert len(inside) > 5000
        far = np.abs(inside - middle).max(1) > scenes.SPREAD + 0.06 + 0.08 + 0.04 + 0.01
        assert far.mean() < 0.02, label


def test_later_objects_cover_earlier_ones():
    random = np.random.default_rng(0)
    picture, masks = np.zeros((50, 48, 48, 3)), np.full((50, 48, 48), 9, np.uint8)
    here = np.arange(50) < 30
    scenes._paint(picture, masks, here, random)
    assert (masks[30:] == 9).all()
    assert not picture[30:].any()
    assert ((masks[:30] != 9) == (picture[:30].any(-1))).mean() > 0.9  # the rest: pixels covered by less than half
    assert picture[:30][masks[:30] != 9].any(-1).all()


@pytest.mark.parametrize("name", scenes.SHIFTS)
def test_a_shift_is_a_pure_function_of_images_and_seed(name, some):
    before = some.images.copy()
    one, same, other = (scenes.SHIFTS[name](some.images, seed) for seed in (0, 0, 1))
    assert one.shape == before.shape
    assert one.dtype == np.uint8
    assert np.array_equal(one, same)
    assert np.array_equal(one, other) == (name == "scanner")
    assert np.array_equal(some.images, before)
    assert np.abs(one.astype(int) - before).mean() > 20


def test_shifts_go_their_ways(some):
    shown = {name: shift(some.images, 0) / 255 for name, shift in scenes.SHIFTS.items()}
    clean = some.images / 255
    assert shown["night"].mean() < 0.5 * clean.mean()
    assert np.ptp(shown["fog"], axis=-1).mean() < 0.5 * np.ptp(clean, axis=-1).mean()
    assert shown["snow"].mean() > clean.mean() + 0.1
    assert shown["scanner"][..., 0].mean() > shown["scanner"][..., 2].mean() + 0.1


def test_errors():
    with pytest.raises(UserError, match="at least 1"):
        scenes.draw(0, 0)
    with pytest.raises(UserError, match="unknown split"):
        scenes.load("valid")
