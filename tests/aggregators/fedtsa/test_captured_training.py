"""A captured training gives what a plain one does."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.fedtsa.captured_training import attend, capture, train_parts
from fedctta.aggregators.fedtsa.noise import prepare_noise
from fedctta.aggregators.fedtsa.training import Training, train

PAPER, CODE = Training(30, 1e-2, 1.0, code=False), Training(30, 1e-2, 0.5, code=True)


FORMS = [PAPER, CODE, PAPER._replace(temporal=False), CODE._replace(temporal=False), PAPER._replace(lam=0.0)]


ids = ["paper", "code", "paper-no-time", "code-no-time", "no-aug"]


def window(clients=4, slots=3, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(clients, slots, dim, generator=generator), torch.ones(clients, slots, dtype=torch.bool)


@pytest.mark.gpu
@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_a_captured_training_gives_what_a_plain_one_does(how):
    capture.cache_clear()
    for seed in range(3):
        x, known = (tensor.cuda() for tensor in window(20, 10, 64, seed))
        known[:, : 2 - seed] = False
        x = x * known[..., None]
        key = torch.tensor(seed).cuda()
        expected = train(x, known, prepare_noise(key, 20, 10, how), how)
        torch.testing.assert_close(attend(x, known, key, how), expected, atol=1e-5, rtol=1e-4)
    assert capture.cache_info().misses == 1


@pytest.mark.gpu
@pytest.mark.parametrize("how", FORMS, ids=ids)
def test_many_trainings_replayed_epoch_by_epoch_give_what_each_does(how):
    x, known = (torch.stack(each).cuda() for each in zip(*(window(20, 10, 64, seed) for seed in range(5)), strict=True))
    known[0, :, :2] = False
    x, keys = x * known[..., None], torch.arange(5).cuda()
    together = train_parts(x, known, keys, 3, how)  # parts of three: the second begins before the first ends
    for k in range(5):
        expected = train(x[k], known[k], prepare_noise(keys[k], 20, 10, how), how)
        for found, plain in zip(together, expected, strict=True):
            torch.testing.assert_close(found[k], plain, atol=1e-5, rtol=1e-4)


def test_on_a_cpu_nothing_is_captured():
    capture.cache_clear()
    (x, known), key = window(), torch.tensor(3)
    expected = train(x, known, prepare_noise(key, 4, 3, PAPER), PAPER)
    for found, plain in zip(attend(x, known, key, PAPER), expected, strict=True):
        assert torch.equal(found, plain)
    assert capture.cache_info().misses == 0
