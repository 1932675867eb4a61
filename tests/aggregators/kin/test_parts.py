"""What single clients have told of a domain, kept apart."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.kin.parts import VOICES, merge, remember_parts

SCALE = torch.tensor([2.0, 4.0])


def hear(memory, rows, heed=None, replaced=False, clip=2.0):
    rows = torch.as_tensor(rows)
    heed = torch.ones(len(rows), 1) if heed is None else torch.as_tensor(heed)
    return remember_parts(rows, heed, torch.tensor([replaced]), SCALE, memory, clip, horizon=16.0)


def test_parts_are_means_over_the_batches_of_a_client():
    first = hear({}, [[2.0, 4.0], [4.0, 8.0]])
    assert first["voices"][0, :3].tolist() == [0, 1, -1]
    assert first["parts"][0, :2].tolist() == [[1, 1], [2, 2]]
    assert first["moments"].tolist() == [[3, 6]]
    second = hear(first, [[4.0, 8.0], [4.0, 8.0]])
    assert second["parts"][0, :2].tolist() == [[1.5, 1.5], [2, 2]]
    assert second["told"][0, :2].tolist() == [2, 2]  # and no more than the horizon allows
    assert hear(second, [[8.0, 16.0], [4.0, 8.0]])["parts"][0, 0].tolist() == [2.75, 2.75]


def test_a_lie_among_five_changes_little_and_is_forgotten():
    honest = torch.tensor([[2.0, 4.0], [2.2, 4.0], [1.8, 4.0], [2.0, 4.4]])
    lied_to = hear({}, torch.cat([honest, torch.tensor([[200.0, 4e4]])]))
    assert (lied_to["moments"][0] - torch.tensor([2.0, 4.0])).abs().max() < 0.5
    after = lied_to
    for _ in range(60):
        after = hear(after, torch.cat([honest, honest[:1]]))
    torch.testing.assert_close(after["moments"][0], torch.tensor([2.0, 4.08]), rtol=0, atol=0.02)


def test_the_voices_heard_last_are_kept():
    memory = hear({}, torch.ones(VOICES, 2))
    later = torch.zeros(VOICES + 1, 1)
    later[VOICES] = 1.0
    after = hear(memory, torch.full((VOICES + 1, 2), 8.0), later)
    assert sorted(after["voices"][0].tolist()) == list(range(1, VOICES + 1))
    assert after["parts"][0, after["voices"][0] == VOICES].tolist() == [[4, 2]]


def test_a_replaced_domain_forgets_its_voices():
    memory = hear({}, [[8.0, 8.0], [8.0, 8.0]])
    after = hear(memory, [[2.0, 4.0]], replaced=True)
    assert after["voices"][0, :2].tolist() == [0, -1]
    assert after["moments"].tolist() == [[2, 4]]


def test_weights_are_batches():
    parts = torch.tensor([[[1.0], [4.0]]])
    assert merge(parts, torch.tensor([[2.0, 1.0]]), 2.0).item() == pytest.approx(2)
    assert merge(parts, torch.tensor([[0.0, 0.0]]), 2.0).item() == 0
