"""Training against a block written plainly with torch's own parts, and what must not change its result."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.aggregators.fedtsa.attention import Attention, Pairs, find_visible, make_identity_block, run_block
from fedctta.aggregators.fedtsa.masks import draw_bernoulli_masks, draw_sized_masks
from fedctta.aggregators.fedtsa.noise import draw_noise
from fedctta.aggregators.fedtsa.training import (
    Attended,
    Training,
    adam_steps,
    compute_loss,
    measure_distance,
    step_adam,
    train,
)

PAPER, CODE = Training(30, 1e-2, 1.0, code=False), Training(30, 1e-2, 0.5, code=True)


FORMS = [PAPER, CODE, PAPER._replace(temporal=False), CODE._replace(temporal=False), PAPER._replace(lam=0.0)]


ids = ["paper", "code", "paper-no-time", "code-no-time", "no-aug"]


def window(clients=4, slots=3, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(clients, slots, dim, generator=generator), torch.ones(clients, slots, dtype=torch.bool)


def noise_at(epoch, noise):
    return Pairs(noise.temporal[epoch], noise.spatial[epoch])


def noise_for(x, how, seed=0):
    """All epochs' noise, an axis in front."""
    return draw_noise(torch.tensor(seed), x.shape[0], x.shape[1], how, 0, how.epochs) if how.lam else None


def by_epoch(noise):
    return noise and (lambda epoch: noise_at(epoch, noise))


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
            keep = draw_sized_masks(raw, now, known) if how.code else draw_bernoulli_masks(scores, now)
            loss = loss + how.lam * measure(output, model(x, how.temporal, keep, how.code)[-1])
        losses.append(loss.item())
        alone = torch.eye(x.shape[1], dtype=x.dtype)[-1].expand(len(x), -1)  # without attention over time
        matrices.append(Attended(s[-1].detach(), alone if a is None else a[:, -1].detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return losses, matrices[min(range(how.epochs), key=losses.__getitem__)]


def permuted(noise, order):
    return noise and Pairs(noise.temporal[:, order], noise.spatial[:, :, order][..., order])


def test_loss_by_hand():
    x, known = torch.zeros(2, 2, 2), torch.tensor([[True, True], [False, True]])
    y = torch.tensor([[[3.0, 4.0], [9.0, 9.0]], [[0.0, 0.0], [0.0, 12.0]]])  # slots first; 9 9 did not arrive
    assert measure_distance(y, x.transpose(0, 1), known, squared=False) == pytest.approx(13)
    assert measure_distance(y, x.transpose(0, 1), known, squared=True) == pytest.approx(169 / 6)


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
    scores = run_block(x, torch.cat([x] * 4, -1), find_visible(known)).scores
    untouched = Attended(scores.spatial[-1], scores.temporal[:, -1])
    torch.testing.assert_close(train(x, known, None, Training(1, 1.0, 0.0, code=False)), untouched)


def test_adam_is_torchs():
    generator = torch.Generator().manual_seed(0)
    block = torch.rand(3, 4, generator=generator)
    theirs, mean, square = nn.Parameter(block.clone()), torch.zeros_like(block), torch.zeros_like(block)
    optimiser, steps = torch.optim.Adam([theirs], lr=0.1), adam_steps(5, 0.1, block)
    for step in range(1, 6):
        theirs.grad = torch.randn(3, 4, generator=generator) * 10.0 ** -(4 * step)
        step_adam(block, theirs.grad, mean, square, steps[step - 1])
        optimiser.step()
        torch.testing.assert_close(block, theirs.detach())


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
    block = make_identity_block(x, True).double().requires_grad_()
    loss, _ = compute_loss(block, x.double(), known, find_visible(known), noise_at(0, noise_for(x, CODE)), CODE)
    (gradient,) = torch.autograd.grad(loss, block)
    size = gradient.view(6, 4, 5).abs().amax(2)  # rows of weights and biases, layers, columns
    assert (size[:5] > 1e-6).all()
    assert (size[5, [0, 2]] > 1e-6).all()
    assert (size[5, [1, 3]] < 1e-12).all()  # a softmax does not see what all keys share
