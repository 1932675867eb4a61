from __future__ import annotations

import numpy as np
import pytest

from fedctta.data import shapes
from fedctta.data.cache import sha256
from fedctta.errors import UserError


def test_the_same_seed_gives_the_same_pictures_everywhere():
    data = shapes.draw(64, 0)
    assert sha256(data.images) == "b356b3e11b52da364e2f41b1ff4ca8fd8110992ac78716edff2788a8add67b2c"
    assert sha256(data.images) == sha256(shapes.draw(64, 0).images)
    assert sha256(data.images) != sha256(shapes.draw(64, 1).images)


def test_form():
    data = shapes.draw(30, 3)
    assert data.images.shape == (30, 32, 32, 3)
    assert data.images.dtype == np.uint8
    assert data.labels.dtype == np.int64
    assert data.classes == tuple(shapes.KINDS)
    np.testing.assert_array_equal(np.bincount(data.labels), np.full(10, 3))


def test_splits_have_their_sizes_differ_and_cannot_be_changed():
    train, test = shapes.load("train"), shapes.load("test")
    assert (len(train), len(test)) == (8000, 2000)
    assert not np.array_equal(train.images[:100], test.images[:100])
    assert shapes.load("test") is test
    with pytest.raises(ValueError, match="read-only"):
        test.images[0] = 0


@pytest.mark.parametrize("kind", shapes.KINDS)
def test_every_shape_is_seen_whole_and_fills_a_fair_part_of_its_circle(kind: str):
    y, x = np.mgrid[-1.5:1.5:301j, -1.5:1.5:301j]
    inside = shapes.KINDS[kind](x, y) > 0
    assert np.hypot(x, y)[inside].max() < 1.3
    assert 0.25 < inside.sum() * 0.01**2 / np.pi <= 1.001


def test_shapes_differ_from_one_another_at_any_turn():
    y, x = np.mgrid[-1.2:1.2:61j, -1.2:1.2:61j]
    masks = {kind: draw(x, y) > 0 for kind, draw in shapes.KINDS.items()}
    for first, mask in masks.items():
        for second, draw in shapes.KINDS.items():
            if first == second:
                continue
            for turn in np.linspace(0, 2 * np.pi, 24, endpoint=False):
                u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
                other = draw(u, v) > 0
                assert (mask & other).sum() < 0.85 * (mask | other).sum(), (first, second, turn)


def test_figures_stand_out_from_their_ground():
    ground, figure = shapes._colour(np.random.default_rng(0), 500)
    apart = np.linalg.norm((figure - ground)[:, 0, 0], axis=1)
    assert apart.min() > 0.34
    assert apart.max() < 0.81


def test_errors():
    with pytest.raises(UserError, match="at least 1"):
        shapes.draw(0, 0)
    with pytest.raises(UserError, match="unknown split"):
        shapes.load("valid")
