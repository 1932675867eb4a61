"""The TS-Block against numbers worked out by hand."""

from __future__ import annotations

import math

import torch

from fedctta.aggregators.fedtsa.attention import attend_to_keys, find_visible, run_block


def untrained(x, known):
    """One pass through the block before its first step."""
    return run_block(x, torch.cat([x] * 4, -1), find_visible(known))


def by_hand():
    """a^2 / sqrt(2) = ln 3, so that an attention is a ratio of powers of three."""
    a = math.sqrt(math.sqrt(2) * math.log(3))
    return a, torch.tensor([[[a, 0.0], [0.0, a]], [[0.0, a], [0.0, a]]]), torch.ones(2, 2, dtype=torch.bool)


def shares(*powers):
    total = sum(3**p for p in powers)
    return [3**p / total for p in powers]


def test_both_attentions_by_hand():
    a, x, known = by_hand()
    result = untrained(x, known)
    expected = torch.tensor([[[0.75, 0.25], [0.25, 0.75]], [[0.5, 0.5], [0.5, 0.5]]])
    torch.testing.assert_close(result.scores.temporal, expected)
    mixed = a * torch.tensor([[[0.75, 0.25], [0.0, 1.0]], [[0.25, 0.75], [0.0, 1.0]]])  # slots first
    torch.testing.assert_close(result.temporal, mixed)
    first, last = [shares(5 / 8, 1 / 4), shares(1 / 4, 1)], [shares(5 / 8, 3 / 4), shares(3 / 4, 1)]
    torch.testing.assert_close(result.scores.spatial, torch.tensor([first, last]))
    own, other = last[0]
    torch.testing.assert_close(result.output[1, 0], a * torch.tensor([own * 0.25, own * 0.75 + other]))


def test_masks_by_hand():
    _, x, known = by_hand()
    layers, keep = torch.cat([x, x], -1), torch.tensor([[True, False], [True, True]])
    seen = find_visible(known).temporal
    hard, soft = attend_to_keys(layers, seen, keep, hard=True), attend_to_keys(layers, seen, keep)
    torch.testing.assert_close(hard[0], torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    torch.testing.assert_close(soft[0], torch.tensor([[0.75, 0.25], [0.25, 0.75]]))  # the score was 0 already
    torch.testing.assert_close(soft[1], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
