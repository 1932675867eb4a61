"""Pairs by hand, and how often they are drawn."""

from __future__ import annotations

import pytest
import torch

from fedctta.training.pairs import WHOLE, Pairing, draw_pairings, mix_pairs


def images() -> torch.Tensor:
    return torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 2, 4, 8).contiguous(memory_format=torch.channels_last)


def test_mixup_adds_the_image_before():
    mixed, share = mix_pairs(images(), Pairing(0.75))
    assert share == 0.75
    assert mixed[:, 0, 0, 0].tolist() == pytest.approx([0.5, 0.75, 1.75])


def test_cutmix_shows_the_image_before_in_a_box_and_counts_what_is_seen():
    mixed, share = mix_pairs(images(), Pairing(0.75, (0.5, 0.5)))
    assert share == 0.75
    expected = torch.full((4, 8), 1.0)
    expected[1:3, 2:6] = 0.0
    assert torch.equal(mixed[1, 0], expected)
    cut, share = mix_pairs(images(), Pairing(0.75, (0.0, 0.5)))
    assert share == 1 - 4 / 32  # half of the box is above the image
    assert (cut[1, 0] == 0).sum() == 4
    assert cut.is_contiguous(memory_format=torch.channels_last)


def test_the_whole_image_is_left_as_it_is():
    x = images()
    mixed, share = mix_pairs(x, WHOLE)
    assert mixed is x
    assert share == 1


def test_a_share_of_the_batches_is_mixed_by_both_ways():
    drawn = draw_pairings(2000, 0.5, torch.Generator().manual_seed(0))
    mixed = [pairing for pairing in drawn if pairing != WHOLE]
    boxes = [pairing for pairing in mixed if pairing.centre is not None]
    assert abs(len(mixed) - 1000) < 100
    assert abs(len(boxes) - 500) < 100
    assert all(0 <= pairing.share <= 1 for pairing in mixed)
    assert drawn == draw_pairings(2000, 0.5, torch.Generator().manual_seed(0))


def test_without_pairs_nothing_is_drawn():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert draw_pairings(3, 0.0, generator) == [WHOLE] * 3
    assert torch.equal(generator.get_state(), before)
