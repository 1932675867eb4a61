"""Crops and flips by hand, the views of a batch, and chances that repeat."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedctta.training.batches import PAD, crop_and_flip, draw_batches, draw_chances
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


def epoch(recipe):
    images = torch.randint(256, (40, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return list(draw_batches(images, 16, recipe, torch.Generator().manual_seed(0)))


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
