"""The TS-Block against numbers worked out by hand and against a block written plainly with torch's own parts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.aggregators.fedtsa import attention as attention_module
from fedctta.aggregators.fedtsa.attention import (
    Attended,
    Attention,
    Pairs,
    Training,
    adam,
    attend,
    attention,
    bernoulli_masks,
    captured,
    distance,
    draw_noise,
    identity_block,
    noise_of,
    numbers,
    objective,
    sample,
    sized_masks,
    train,
    ts_block,
    visible,
)

PAPER, CODE = Training(30, 1e-2, 1.0, code=False), Training(30, 1e-2, 0.5, code=True)
FORMS = [PAPER, CODE, PAPER._replace(temporal=False), CODE._replace(temporal=False), PAPER._replace(lam=0.0)]
ids = ["paper", "code", "paper-no-time", "code-no-time", "no-aug"]


def window(clients=4, slots=3, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(clients, slots, dim, generator=generator), torch.ones(clients, slots, dtype=torch.bool)


def noise_for(x, how, seed=0):
    """All epochs' noise, an axis in front."""
    return draw_noise(torch.tensor(seed), x.shape[0], x.shape[1], how, range(how.epochs)) if how.lam else None


def by_epoch(noise):
    return noise and (lambda epoch: noise_at(epoch, noise))


def untrained(x, known):
    """One pass through the block before its first step."""
    return ts_block(x, torch.cat([x] * 4, -1), visible(known))


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
    seen = visible(known).temporal
    hard, soft = attention(layers, seen, keep, hard=True), attention(layers, seen, keep)
    torch.testing.assert_close(hard[0], torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    torch.testing.assert_close(soft[0], torch.tensor([[0.75, 0.25], [0.25, 0.75]]))  # the score was 0 already
    torch.testing.assert_close(soft[1], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_loss_by_hand():
    x, known = torch.zeros(2, 2, 2), torch.tensor([[True, True], [False, True]])
    y = torch.tensor([[[3.0, 4.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 12.0]]])  # slots first; 9 9 did not arrive
    assert distance(y, x.transpose(0, 1), known, squared=False) == pytest.approx(13)
    assert distance(y, x.transpose(0, 1), known, squared=True) == pytest.approx(169 / 6)


NOTHING = Pairs(None, None)


class Plain(nn.Module):
    """The block the straightforward way: linear layers, and X^TA projected for itself."""

    def __init__(self, dim):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(4))
        for layer in self.layers:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    @staticmethod
    def attend(q, k, v, keep, hard):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if keep is not None:
            scores = scores.masked_fill(~keep, -math.inf) if hard else scores * keep
        return scores.softmax(-1), scores.softmax(-1) @ v

    def forward(self, x, temporal, keep=NOTHING, hard=False):
        tq, tk, sq, sk = self.layers
        a = None
        if temporal:
            a, x = self.attend(tq(x), tk(x), x, keep.temporal, hard)
        x = x.transpose(0, 1)
        s, output = self.attend(sq(x), sk(x), x, keep.spatial, hard)
        return a, s, x, output


def plainly(x, noise, how):
    """Train `Plain` with torch's Adam; return all losses and what the best epoch attends to."""
    model, losses, matrices = Plain(x.shape[-1]).to(x.dtype), [], []
    optimiser = torch.optim.Adam(model.parameters(), how.lr)
    known = torch.ones(x.shape[:2], dtype=torch.bool)
    measure = nn.functional.mse_loss if how.code else lambda a, b: (a - b).norm()
    for epoch in range(how.epochs):
        a, s, mixed, output = model(x, how.temporal)
        loss = measure(output, x.transpose(0, 1))
        if how.lam:
            now = Pairs(noise.temporal[epoch], noise.spatial[epoch])
            scores = Pairs(now.temporal if a is None else a.detach(), s.detach())
            raw = Attention(scores, mixed.detach(), output.detach())
            keep = sized_masks(raw, now, known) if how.code else bernoulli_masks(scores, now)
            loss = loss + how.lam * measure(output, model(x, how.temporal, keep, how.code)[-1])
        losses.append(loss.item())
        alone = torch.eye(x.shape[1], dtype=x.dtype)[-1].expand(len(x), -1)  # without attention over time
        matrices.append(Attended(s[-1].detach(), alone if a is None else a[:, -1].detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses, matrices[min(range(how.epochs), key=losses.__getitem__)]


@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_training_equals_a_plain_block_and_lowers_the_loss(how):
    x, known = window()
    x, noise = 2 * x.double(), noise_for(x, how)
    losses, expected = plainly(x, noise, how)
    torch.testing.assert_close(train(x, known, by_epoch(noise), how), expected, atol=1e-6, rtol=0)
    assert min(losses) < losses[0]
    untouched = train(x, known, by_epoch(noise), how._replace(epochs=1))
    assert (expected.clients - untouched.clients).abs().max() > 1e-3
    assert not how.temporal or (expected.slots - untouched.slots).abs().max() > 1e-3


def test_one_epoch_is_the_untrained_block():
    x, known = window()
    scores = untrained(x, known).scores
    untouched = Attended(scores.spatial[-1], scores.temporal[:, -1])
    torch.testing.assert_close(train(x, known, None, Training(1, 1.0, 0.0, code=False)), untouched)


def test_adam_is_torchs():
    generator = torch.Generator().manual_seed(0)
    block = torch.rand(3, 4, generator=generator)
    theirs, mean, square = nn.Parameter(block.clone()), torch.zeros_like(block), torch.zeros_like(block)
    optimiser = torch.optim.Adam([theirs], lr=0.1)
    for step in range(1, 6):
        theirs.grad = torch.randn(3, 4, generator=generator) * 10.0 ** -(4 * step)
        adam(block, theirs.grad, mean, square, step, lr=0.1)
        optimiser.step()
        torch.testing.assert_close(block, theirs.detach())


def test_a_sample_has_its_size_and_only_what_it_may():
    generator = torch.Generator().manual_seed(0)
    among = torch.rand(50, 4, 4, generator=generator) < 0.7
    count = among.sum((1, 2)) // 2
    drawn = sample(torch.zeros(50, 4, 4), among, count, torch.rand(50, 4, 4, generator=generator))
    assert (drawn <= among).all()
    assert torch.equal(drawn.sum((1, 2)), count)


def test_a_sample_of_one_follows_the_weights():
    weight = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    noise = torch.rand(20000, 2, 2, generator=torch.Generator().manual_seed(0))
    drawn = sample(weight, torch.ones(20000, 2, 2, dtype=torch.bool), torch.ones(20000, dtype=torch.int64), noise)
    torch.testing.assert_close(drawn.float().mean(0), weight / 8, atol=0.01, rtol=0)


def test_bernoulli_masks_keep_with_the_attention_and_always_oneself():
    scores = untrained(*window()).scores
    draws = Training(4000, 0.0, 1.0, code=False)
    keep = bernoulli_masks(scores, draw_noise(torch.tensor(0), 4, 3, draws, range(4000)))
    torch.testing.assert_close(keep.temporal.float().mean(0), scores.temporal, atol=0.03, rtol=0)
    loops = torch.eye(4, dtype=torch.bool)
    torch.testing.assert_close(keep.spatial.float().mean(0), torch.where(loops, 1, scores.spatial), atol=0.03, rtol=0)


def test_masks_of_fixed_size_by_count():
    towards = torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 1.0]] * 6)  # two groups of six
    x = (towards[:, None] + torch.zeros(12, 4, 2)).contiguous()
    known = torch.ones(12, 4, dtype=torch.bool)
    keep = sized_masks(untrained(x, known), noise_at(0, noise_for(x, CODE)), known)
    loops = torch.eye(4, dtype=torch.bool)
    assert keep.temporal[:, loops].all()
    dropped = (~keep.temporal).sum((1, 2))
    assert ((dropped <= 12) & (dropped >= 12 - 4)).all()  # 3/4 of 16, less what fell on the diagonal
    same = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).bool()
    assert keep.spatial.shape == (1, 12, 12)
    assert keep.spatial[0].diagonal().all()
    assert keep.spatial[0][same].sum() == 12 + 60 - 48  # 60 edges, 4/5 dropped
    assert keep.spatial[0][~same].sum() == 14  # 72 gaps, 1/5 added


def groups(*sizes, slots=4):
    """A window of clients in groups, each with a direction of its own."""
    towards = torch.eye(len(sizes)).repeat_interleave(torch.tensor(sizes), 0)
    return towards[:, None].repeat(1, slots, 1), torch.ones(sum(sizes), slots, dtype=torch.bool)


def kept_of(x, known, noise):
    """How many ties there are within groups and between them, oneself left out."""
    keep = sized_masks(untrained(x, known), noise, known).spatial[0]
    same = x[:, 0] @ x[:, 0].T > 0
    return int(keep[same].sum()) - len(x), int(keep[~same].sum())


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
        return sized_masks(ts_block(x, torch.cat([x] * 4, -1), visible(known)), noise, known).spatial

    together = torch.func.vmap(spatial)(x, known, Pairs(*(torch.stack(parts) for parts in zip(*noise, strict=True))))
    for k, keep in enumerate(together):
        assert torch.equal(keep, spatial(x[k], known[k], noise[k]))
    assert [int(keep.sum()) for keep in together] == [10 + 8 + 9, 10 + 12 + 6, 10 + 15 + 3]


def noise_at(epoch, noise):
    return Pairs(noise.temporal[epoch], noise.spatial[epoch])


@pytest.mark.parametrize("how", [PAPER, CODE], ids=["paper", "code"])
@pytest.mark.parametrize("rounds", [(), (2,)], ids=["one round", "two rounds"])
def test_noise_drawn_in_parts_is_the_same(how, rounds, monkeypatch):
    key = torch.arange(5, 5 + math.prod(rounds)).reshape(rounds)
    whole = noise_of(key, 4, 3, how)
    seven_epochs = 7 * math.prod(rounds) * numbers(4, 3, how)  # of 30
    monkeypatch.setattr(attention_module, "MANY", seven_epochs)
    parts = noise_of(key, 4, 3, how)
    for epoch in (0, 6, 7, 29, 3):
        for one, other in zip(whole(epoch), parts(epoch), strict=True):
            assert torch.equal(one, other)
    assert whole(0).temporal.shape == (*rounds, 4, 3, 3)
    assert not torch.equal(whole(0).spatial, whole(1).spatial)


def permuted(noise, order):
    return noise and Pairs(noise.temporal[:, order], noise.spatial[:, :, order][..., order])


@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_permuting_clients_and_their_noise_permutes_the_matrix(how):
    x, known = window(5)
    known[1, 0], x[1, 0], order = False, 0.0, torch.tensor([3, 0, 4, 1, 2])
    noise = noise_for(x, how)
    weights, slots = train(x.double(), known, by_epoch(noise), how)
    again, slots_again = train(x[order].double(), known[order], by_epoch(permuted(noise, order)), how)
    torch.testing.assert_close(again, weights[order][:, order], atol=1e-6, rtol=0)
    torch.testing.assert_close(slots_again, slots[order], atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_a_client_that_never_came_might_as_well_not_exist(how):
    x, known = window(4)
    x[1], known[1], rest = 0.0, False, torch.tensor([0, 2, 3])
    noise = noise_for(x, how)
    weights, slots = train(x.double(), known, by_epoch(noise), how)
    assert weights.isfinite().all()
    assert (weights[rest][:, 1] == 0).all()
    without, slots_without = train(x[rest].double(), known[rest], by_epoch(permuted(noise, rest)), how)
    torch.testing.assert_close(weights[rest][:, rest], without, atol=1e-6, rtol=0)
    torch.testing.assert_close(slots[rest], slots_without, atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_slots_before_the_first_round_might_as_well_not_exist(how):
    x, known = window(slots=4)
    x[:, :2], known[:, :2] = 0.0, False
    noise = noise_for(x, how)
    short = noise and Pairs(noise.temporal[:, :, 2:, 2:], noise.spatial if how.code else noise.spatial[:, 2:])
    expected, slots_expected = train(x[:, 2:].double(), known[:, 2:], by_epoch(short), how)
    weights, slots = train(x.double(), known, by_epoch(noise), how)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(slots[:, 2:], slots_expected, atol=1e-6, rtol=0)
    assert (slots[:, :2] == 0).all()


@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_saturated_attention_gives_numbers(how):
    x, known = window()
    known[0, 1:] = False
    weights, slots = train(1000 * x * known[..., None], known, by_epoch(noise_for(x, how)), how)
    for rows in (weights, slots):
        assert rows.isfinite().all()
        torch.testing.assert_close(rows.sum(1), torch.ones(4))


def test_the_gradient_reaches_all_layers_but_key_biases():
    x, known = window()
    block = identity_block(x, True).double().requires_grad_()
    loss, _ = objective(block, x.double(), known, visible(known), noise_at(0, noise_for(x, CODE)), CODE)
    (gradient,) = torch.autograd.grad(loss, block)
    size = gradient.view(6, 4, 5).abs().amax(2)  # rows of weights and biases, layers, columns
    assert (size[:5] > 1e-6).all()
    assert (size[5, [0, 2]] > 1e-6).all()
    assert (size[5, [1, 3]] < 1e-12).all()  # a softmax does not see what all keys share


@pytest.mark.gpu
@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_a_captured_training_gives_what_a_plain_one_does(how):
    captured.cache_clear()
    for seed in range(3):
        x, known = (tensor.cuda() for tensor in window(20, 10, 64, seed))
        known[:, : 2 - seed] = False
        x = x * known[..., None]
        key = torch.tensor(seed).cuda()
        expected = train(x, known, noise_of(key, 20, 10, how), how)
        torch.testing.assert_close(attend(x, known, key, how), expected, atol=1e-5, rtol=1e-4)
    assert captured.cache_info().misses == 1
