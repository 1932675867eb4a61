"""Masks are drawn by their attention, and those of the published code have its sizes."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.fedtsa.attention import Pairs, find_visible, run_block
from fedctta.aggregators.fedtsa.masks import draw_bernoulli_masks, draw_sample, draw_sized_masks
from fedctta.aggregators.fedtsa.noise import draw_noise
from fedctta.aggregators.fedtsa.training import Training

CODE = Training(30, 1e-2, 0.5, code=True)


def window(clients=4, slots=3, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(clients, slots, dim, generator=generator), torch.ones(clients, slots, dtype=torch.bool)


def noise_at(epoch, noise):
    return Pairs(noise.temporal[epoch], noise.spatial[epoch])


def noise_for(x, how, seed=0):
    """All epochs' noise, an axis in front."""
    return draw_noise(torch.tensor(seed), x.shape[0], x.shape[1], how, 0, how.epochs) if how.lam else None


def untrained(x, known):
    """One pass through the block before its first step."""
    return run_block(x, torch.cat([x] * 4, -1), find_visible(known))


def groups(*sizes, slots=4):
    """A window of clients in groups, each with a direction of its own."""
    towards = torch.eye(len(sizes)).repeat_interleave(torch.tensor(sizes), 0)
    return towards[:, None].repeat(1, slots, 1), torch.ones(sum(sizes), slots, dtype=torch.bool)


def kept_of(x, known, noise):
    """How many ties there are within groups and between them, oneself left out."""
    keep = draw_sized_masks(untrained(x, known), noise, known).spatial[0]
    same = x[:, 0] @ x[:, 0].T > 0
    return int(keep[same].sum()) - len(x), int(keep[~same].sum())


def test_a_sample_has_its_size_and_only_what_it_may():
    generator = torch.Generator().manual_seed(0)
    among = torch.rand(50, 4, 4, generator=generator) < 0.7
    count = among.sum((1, 2)) // 2
    drawn = draw_sample(torch.zeros(50, 4, 4), among, count, torch.rand(50, 4, 4, generator=generator))
    assert (drawn <= among).all()
    assert torch.equal(drawn.sum((1, 2)), count)


def test_a_sample_of_one_follows_the_weights():
    weight = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    noise = torch.rand(20000, 2, 2, generator=torch.Generator().manual_seed(0))
    drawn = draw_sample(weight, torch.ones(20000, 2, 2, dtype=torch.bool), torch.ones(20000, dtype=torch.int64), noise)
    torch.testing.assert_close(drawn.float().mean(0), weight / 8, atol=0.01, rtol=0)


def test_bernoulli_masks_keep_with_the_attention_and_always_oneself():
    scores = untrained(*window()).scores
    draws = Training(4000, 0.0, 1.0, code=False)
    keep = draw_bernoulli_masks(scores, draw_noise(torch.tensor(0), 4, 3, draws, 0, 4000))
    torch.testing.assert_close(keep.temporal.float().mean(0), scores.temporal, atol=0.03, rtol=0)
    loops = torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(keep.spatial.float().mean(0), torch.where(loops, 1, scores.spatial), atol=0.03, rtol=0)


def test_masks_of_fixed_size_by_count():
    towards = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 6)  # two groups of six
    x = (towards[:, None] + torch.zeros(12, 4, 2)).contiguous()
    known = torch.ones(12, 4, dtype=torch.bool)
    keep = draw_sized_masks(untrained(x, known), noise_at(0, noise_for(x, CODE)), known)
    loops = torch.eye(4, dtype=torch.bool)
    assert keep.temporal[:, loops].all()
    dropped = (~keep.temporal).sum((1, 2))
    assert ((dropped <= 12) & (dropped >= 12 - 4)).all()  # 3/4 of 16, less what fell on the diagonal
    same = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).bool()
    assert keep.spatial.shape == (1, 12, 12)
    assert keep.spatial[0].diagonal().all()
    assert keep.spatial[0][same].sum() == 12 + 60 - 48  # 60 edges, 4/5 dropped
    assert keep.spatial[0][~same].sum() == 14  # 72 gaps, 1/5 added


@pytest.mark.parametrize(
    ("sizes", "edges", "gaps", "added"),
    [((6, 6), 60, 72, 14), ((5, 5), 40, 50, 9), ((3, 1), 6, 6, 1), ((5, 1), 20, 10, 1)],
)
def test_edges_are_counted_as_the_published_code_does(sizes, edges, gaps, added):
    x, known = groups(*sizes)
    assert added == int(gaps * (1 - 0.8))  # 9.999... and 1.999... where one would expect 10 and 2
    assert kept_of(x, known, noise_at(0, noise_for(x, CODE))) == (edges - int(edges * 0.8), added)


def test_many_masks_at_once_are_those_of_each_alone():
    windows = [groups(5, 5), groups(8, 2), groups(9, 1)]  # 50, 32 and 18 gaps
    x, known = (torch.stack(parts) for parts in zip(*windows, strict=True))
    noise = [noise_at(0, noise_for(x[0], CODE, seed)) for seed in range(3)]

    def spatial(x, known, noise):
        return draw_sized_masks(run_block(x, torch.cat([x] * 4, -1), find_visible(known)), noise, known).spatial

    together = torch.func.vmap(spatial)(x, known, Pairs(*(torch.stack(parts) for parts in zip(*noise, strict=True))))
    for k, keep in enumerate(together):
        assert torch.equal(keep, spatial(x[k], known[k], noise[k]))
    assert [int(keep.sum()) for keep in together] == [10 + 8 + 9, 10 + 12 + 6, 10 + 15 + 3]
