"""How the memory of a domain grows and fades, and that what is sent are the statistics of all its images."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators import Uploads
from fedctta.aggregators.kin.statistics_memory import FADE, blend_rows, find_means, grow, is_statistic, recall, remember

SOURCE = {"a.running_mean": torch.tensor([5.0]), "a.running_var": torch.tensor([1.0])}


def upload(means, variances, fresh):
    own = {"a.running_mean": torch.tensor(means)[:, None], "a.running_var": torch.tensor(variances)[:, None]}
    return Uploads(own, {"fresh": torch.tensor(fresh)}, torch.ones(len(means), dtype=torch.bool))


def test_nothing_is_left_in_a_place_that_was_taken():
    heed, rows = torch.tensor([[0.1, 1.0], [0.2, 0.0], [0.4, 0.0]]), torch.tensor([[1.0], [2.0], [4.0]])
    weight, part, kept = grow(torch.tensor([0.0, 3.0]), heed, horizon=500.0)
    torch.testing.assert_close(weight, torch.tensor([0.7, 3 * FADE + 1]))
    after = blend_rows(torch.tensor([[1e30], [2.0]]), kept, part, rows)
    by_hand = [(0.1 + 0.4 + 1.6) / 0.7, (3 * FADE * 2 + 1) / (3 * FADE + 1)]
    torch.testing.assert_close(after[:, 0], torch.tensor(by_hand))


def test_the_horizon_bounds_the_weight_and_keeps_parts_of_one():
    weight, part, kept = grow(torch.tensor([3.0]), torch.tensor([[1.0], [1.0]]), horizon=3.0)
    assert weight.tolist() == [3]
    assert part.tolist() == [[pytest.approx(1 / 3)] * 2]
    assert kept.item() == pytest.approx(1 / 3)


def test_what_is_sent_are_mean_and_variance_of_all_batches():
    """Batches of mean 4 and 8: the variance between them counts; client 2 mixes its statistics and is no part of it."""
    uploads = upload([4.0, 8.0, 90.0], [1.0, 3.0, 9.0], [1.0, 1.0, 0.0])
    memory = {"weight": torch.zeros(1), "belief": torch.tensor([[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]])}
    memory |= remember(SOURCE, uploads, torch.ones(3, 1), torch.tensor([True]), memory, horizon=500.0)
    assert memory["batches"].tolist() == [2]
    mixed = {name: torch.full((3, 1), 7.0) for name in SOURCE}
    sent = recall(SOURCE, uploads, mixed, uploads.active, memory)
    assert sent["a.running_mean"].flatten().tolist() == pytest.approx([6, 6.5, 7])
    assert sent["a.running_var"].flatten().tolist() == pytest.approx([2 + 4, 6.5, 7])
    nobody = recall(SOURCE, uploads, mixed, ~uploads.active, memory)
    assert all(torch.equal(nobody[name], mixed[name]) for name in mixed)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_place_that_was_taken_forgets_its_statistics(replaced):
    uploads = upload([4.0], [1.0], [1.0])
    memory = {"weight": torch.ones(1), "batches": torch.ones(1), "moments": torch.tensor([[1e6, 1e12]])}
    after = remember(SOURCE, uploads, torch.ones(1, 1), torch.tensor([replaced]), memory, horizon=500.0)
    assert after["batches"].item() == pytest.approx(1 if replaced else 1 + FADE)
    assert (after["moments"].tolist() == [[-1, 2]]) == replaced


def test_parts_kept_apart_add_up_to_the_same_without_lies():
    uploads = upload([4.0, 8.0, 90.0], [1.0, 3.0, 9.0], [1.0, 1.0, 0.0])
    plain, apart = (
        remember(SOURCE, uploads, torch.ones(3, 1), torch.tensor([True]), {"weight": torch.zeros(1)}, 500.0, clip)
        for clip in (0.0, 9.0)
    )
    torch.testing.assert_close(apart["moments"], plain["moments"], rtol=1e-4, atol=1e-4)
    assert torch.equal(apart["batches"], plain["batches"])


def test_a_batch_of_no_numbers_is_not_remembered():
    memory = {"weight": torch.zeros(1)}
    uploads = upload([4.0, torch.nan], [1.0, torch.inf], [1.0, 1.0])
    after = remember(SOURCE, uploads, torch.ones(2, 1), torch.tensor([True]), memory, horizon=500.0)
    assert after["batches"].tolist() == [1]
    assert after["moments"].tolist() == [[-1, 2]]


def test_names_of_statistics():
    own = {"b.running_mean": 0, "a.running_var": 0, "a.running_mean": 0, "a.weight": 0}
    assert find_means(own) == ["a.running_mean", "b.running_mean"]
    assert [name for name in own if not is_statistic(name)] == ["a.weight"]
