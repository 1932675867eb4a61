"""Crops and flips by hand, the views of a batch, and chances that repeat."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedctta.training.batches import (
    AREA,
    PAD,
    RATIO,
    crop_and_flip,
    draw_batches,
    draw_chances,
    draw_parts,
    enlarge_part,
    shrink,
)
from fedctta.training.recipe import Recipe

SHORT = Recipe(epochs=4, batch=32, lr=0.1)


def test_crop_and_flip_by_hand():
    images = torch.arange(2 * 6 * 6 * 3).reshape(2, 6, 6, 3).to(torch.uint8)
    shift = torch.tensor([[PAD, PAD], [PAD + 1, PAD - 2]])
    out = crop_and_flip(images, shift, torch.tensor([True, False]))
    assert torch.equal(out[0], images[0].flip(1))
    expected = torch.zeros_like(images[1])
    expected[:5, 2:] = images[1][1:, :4]
    assert torch.equal(out[1], expected)


def test_chances_are_the_seeds_and_leave_no_image_out():
    cpu = torch.device("cpu")
    first, again, other = (draw_chances(500, torch.Generator().manual_seed(seed), cpu) for seed in (0, 0, 1))
    for one, same, different in zip(first, again, other, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, different)
    order, shift, flip = first
    assert order.sort().values.tolist() == list(range(500))
    assert shift.unique().tolist() == list(range(2 * PAD + 1))
    assert 200 < flip.sum() < 300


def epoch(recipe, side=None):
    images = torch.randint(256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return list(draw_batches(images, 16, recipe, torch.Generator().manual_seed(0), side))


def test_parts_lie_in_the_image_and_have_the_area_and_form_asked_for():
    parts = draw_parts(2000, torch.Generator().manual_seed(0))
    centre, half = parts[:, :2], parts[:, 2:]
    assert ((centre.abs() + half) <= 1 + 1e-6).all()
    area, ratio = half.prod(1), half[:, 0] / half[:, 1]
    whole = (half < 1).all(1)  # what is not cut off at the image's border
    assert (area > AREA[0] * 0.999)[whole].all()
    assert ((ratio > RATIO[0] * 0.999) & (ratio < RATIO[1] * 1.001)).all()
    assert abs(area.mean() - 0.66) < 0.02
    assert centre.mean(0).abs().max() < 0.02


def test_a_part_is_enlarged_and_mirrored():
    images = torch.arange(2 * 4 * 8 * 3).reshape(2, 4, 8, 3).to(torch.uint8)
    whole, flip = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(2, 4), torch.tensor([True, False])
    same = enlarge_part(images, whole, flip, (4, 8))
    torch.testing.assert_close(same[0], images[0].flip(1).movedim(-1, 0) / 255)
    torch.testing.assert_close(same[1], images[1].movedim(-1, 0) / 255)
    corner = torch.tensor([[0.5, -0.5, 0.5, 0.5]]).expand(2, 4)  # the right half of the upper half
    torch.testing.assert_close(
        enlarge_part(images, corner, flip, (2, 4))[1], images[1, :2, 4:].movedim(-1, 0) / 255, atol=1e-6, rtol=0
    )
    assert same.is_contiguous(memory_format=torch.channels_last)


def test_shrunk_images_are_means_and_whole_ones_stay():
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=torch.channels_last)
    assert shrink(x, (8, 8)) is x
    small = shrink(x, (4, 4))
    torch.testing.assert_close(small.mean((2, 3)), x.mean((2, 3)), atol=0.05, rtol=0)
    torch.testing.assert_close(shrink(torch.full_like(x, 0.5), (4, 4)), torch.full((2, 3, 4, 4), 0.5))
    assert small.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("augment", ["none", "crop+flip", "resized", "augmix"])
def test_an_epoch_may_be_of_smaller_images(augment):
    recipe = replace(SHORT, augment=augment)
    (whole, index), (small, same) = (epoch(recipe, side)[0] for side in (None, 24))
    assert (whole.shape, small.shape) == ((16, 3, 32, 32), (16, 3, 24, 24))
    assert torch.equal(index, same)
    assert (whole.mean((1, 2, 3)) - small.mean((1, 2, 3))).abs().max() < 0.05


def test_views_of_a_batch():
    plain, single, triple = (
        epoch(recipe)
        for recipe in (SHORT, replace(SHORT, augment="augmix"), replace(SHORT, augment="augmix", consistency=1.0))
    )
    assert [len(batches) for batches in (plain, single, triple)] == [2, 2, 2]
    for (clean, index), (mixed, same), (views, alike) in zip(plain, single, triple, strict=True):
        assert torch.equal(index, same)
        assert torch.equal(index, alike)
        assert (len(clean), len(mixed), len(views)) == (16, 16, 48)
        assert torch.equal(views[:16], clean)
        assert torch.equal(views[16:32], mixed)
        assert not torch.equal(views[32:], mixed)
        assert not torch.equal(mixed, clean)
        assert views.is_contiguous(memory_format=torch.channels_last)
