"""Kernels learn what plain torch does, with either kind of masks, slots that did not arrive and any size."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.fedtsa.attention import Pairs, find_visible, make_identity_block
from fedctta.aggregators.fedtsa.fused_training import can_fuse_training, draw_fused, learn_fused, train_epoch_fused
from fedctta.aggregators.fedtsa.noise import draw_noise, prepare_noise
from fedctta.aggregators.fedtsa.training import Training, learn_at_once, train

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAPER, CODE = Training(30, 1e-2, 0.7, code=False), Training(30, 1e-2, 0.5, code=True)
FORMS, ids = [PAPER, CODE, PAPER._replace(lam=0.0), CODE._replace(lam=0.0)], ["paper", "code", "no-aug", "code-no-aug"]


def windows(rounds, clients, slots, dim):
    """Windows with clients in groups; in the first round some slots, and in the last a client, did not arrive."""
    generator = torch.Generator().manual_seed(clients)
    towards = torch.randn(3, dim, generator=generator)[torch.arange(clients) % 3]
    x = towards[None, :, None] + torch.randn(rounds, clients, slots, dim, generator=generator)
    known = torch.ones(rounds, clients, slots, dtype=torch.bool)
    known[0, :, : slots // 2], known[-1, 1], known[-1, 0, -1] = False, False, False
    return (x * known[..., None]).to(DEVICE), known.to(DEVICE)


def blocks_after_some_training(x):
    block = make_identity_block(x, True)
    noise = torch.randn(len(x), *block.shape, generator=torch.Generator().manual_seed(1))
    return block + 0.1 / x.shape[-1] ** 0.5 * noise.to(DEVICE)


def noise_of(keys, clients, slots, how, epoch):
    drawn = torch.func.vmap(lambda key: draw_noise(key, clients, slots, how, epoch, 1))(keys)
    return Pairs(*(numbers[:, 0] for numbers in drawn))


@pytest.mark.triton
@pytest.mark.parametrize("how", FORMS, ids=ids)
@pytest.mark.parametrize(
    ("rounds", "clients", "slots", "dim"), [(2, 3, 4, 16), (3, 20, 10, 40), (2, 4, 1, 5), (2, 17, 18, 33)]
)
def test_an_epoch_is_that_of_plain_torch(how, rounds, clients, slots, dim):
    x, known = windows(rounds, clients, slots, dim)
    block, keys = blocks_after_some_training(x), torch.arange(rounds, device=DEVICE)
    noise = noise_of(keys, clients, slots, how, 3) if how.lam else None
    seen = torch.func.vmap(find_visible)(known)
    gradient, loss, now = learn_fused(block, x, known, noise, how)
    expected, expected_loss, expected_now = learn_at_once(block, x, known, seen, noise, how)
    torch.testing.assert_close(loss, expected_loss, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(now, expected_now, atol=1e-5, rtol=1e-4)
    largest = expected.abs().max().item()
    assert largest > 1e-4
    torch.testing.assert_close(gradient, expected, atol=2e-6 * largest, rtol=1e-4)


@pytest.mark.triton
@pytest.mark.parametrize("how", FORMS, ids=ids)
@pytest.mark.parametrize("lone", [False, True], ids=["many", "one"])
def test_a_training_is_that_of_plain_torch(how, lone):
    how, key = how._replace(epochs=8), torch.arange(3, device=DEVICE)
    x, known = windows(3, 5, 4, 16)
    x, known, key = (x[1], known[1], key[1]) if lone else (x, known, key)
    noise = prepare_noise(key, 5, 4, how)
    found = train(x, known, noise, how, train_epoch_fused)
    torch.testing.assert_close(found, train(x, known, noise, how), atol=1e-5, rtol=1e-4)
    assert (found.clients - train(x, known, noise, how._replace(epochs=1)).clients).abs().max() > 1e-4


@pytest.mark.triton
def test_a_loss_of_nothing_has_no_gradient():
    """One slot of one client that arrived is attended to alone, so that both norms are 0."""
    x, known = torch.zeros(1, 2, 2, 16, device=DEVICE), torch.zeros(1, 2, 2, dtype=torch.bool, device=DEVICE)
    x[0, 0, 1], known[0, 0, 1] = 1.0, True
    gradient, loss, now = learn_fused(
        make_identity_block(x, True)[None], x, known, noise_of(torch.tensor([5], device=DEVICE), 2, 2, PAPER, 0), PAPER
    )
    assert loss.item() == 0
    assert (gradient == 0).all()
    assert now.clients[0].tolist() == [[1, 0], [0.5, 0.5]]


@pytest.mark.triton
@pytest.mark.parametrize("how", [PAPER, CODE], ids=["paper", "code"])
def test_noise_is_drawn_as_by_plain_torch(how):
    keys, epoch = torch.tensor([0, 7, 2**31 - 3, 2**32 - 2], device=DEVICE), torch.tensor([11], device=DEVICE)
    for found, plain in zip(draw_fused(keys, 4, 3, how, epoch), noise_of(keys, 4, 3, how, 11), strict=True):
        assert torch.equal(found, plain)


def test_other_trainings_are_left_to_plain_torch():
    x = torch.zeros(2, 4, 3, 5)
    assert not can_fuse_training(x, PAPER)  # on a CPU
    assert not can_fuse_training(x, PAPER._replace(temporal=False))
