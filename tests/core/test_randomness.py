"""Numbers from keys: well spread, repeatable, and nobody's business but the client's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedctta.core.clients import by_loop, by_vmap
from fedctta.core.randomness import _hash, _hash_short, advance, fork, fork_all, keys, name_of, normal, uniform

KEY = torch.tensor(12345)


def test_uniform_numbers_are_uniform():
    x = uniform(KEY, (200_000,), -1, 3)
    assert x.min() >= -1
    assert x.max() < 3
    counts = torch.histc(x, 50, -1, 3)
    assert ((counts - 4000) / 4000**0.5).square().mean() < 2  # chi squared over its degrees of freedom
    assert abs(torch.corrcoef(torch.stack([x[:-1], x[1:]]))[0, 1]) < 0.01


def test_normal_numbers_are_normal():
    x = normal(KEY, (200_000,))
    assert x.isfinite().all()
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert abs((x**power).mean() - moment) < 0.05


@given(st.integers(0, 2**32), st.integers(1, 9))
def test_a_clients_key_does_not_depend_on_how_many_there_are(seed, count):
    assert torch.equal(keys(seed, count), keys(seed, 20)[:count])


def test_keys_of_clients_seeds_batches_and_purposes_differ():
    found = torch.cat([keys(seed, 500) for seed in range(20)])
    found = torch.cat([found, advance(found), fork(found, 1), fork(found, 2)])
    assert len(found.unique()) > 0.9999 * len(found)
    one, two = (uniform(key, (5000,)) for key in keys(0, 2))
    assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 0.05


def test_several_purposes_and_keys_at_once_are_each_by_itself():
    forked = fork_all(keys(0, 3), (7, 1))
    assert torch.equal(forked, torch.stack([fork(keys(0, 3), 7), fork(keys(0, 3), 1)], 1))
    drawn = uniform(forked, (4, 2), -1, 1)
    assert torch.equal(drawn[2, 1], uniform(forked[2, 1], (4, 2), -1, 1))


def test_short_hashes_are_the_hashes():
    x = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 123456789])
    assert torch.equal(_hash_short(x.to(torch.int32)).long() & 0xFFFFFFFF, _hash(x))
    assert torch.equal(uniform(x[4], (3,)), (_hash(x[4] + torch.arange(3)) >> 8) / 2.0**24)


def test_names_are_of_a_client_and_a_number():
    numbers = torch.arange(500)
    found = torch.stack([name_of(key, numbers) for key in keys(0, 20)])
    assert (found[:, 0] == 0).all()
    assert (found[:, 1:] > 0).all()
    assert len(found[:, 1:].unique()) == 20 * 499


@pytest.mark.parametrize("draw", [uniform, normal])
def test_lifting_changes_nothing(draw):
    def of_one(key):
        return draw(fork(advance(key), 3), (2, 5))

    vmapped, looped = by_vmap(of_one)(keys(7, 4)), by_loop(of_one)(keys(7, 4))
    assert torch.equal(vmapped, looped)
    assert torch.equal(vmapped[2], of_one(keys(7, 4)[2]))


@pytest.mark.gpu
def test_devices_agree():
    assert torch.equal(uniform(KEY.cuda(), (1000,)).cpu(), uniform(KEY, (1000,)))
    assert torch.equal(keys(3, 9, "cuda").cpu(), keys(3, 9))
