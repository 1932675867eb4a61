"""Blocks of many rounds at once: their windows, and when they are left to be trained round by round."""

from __future__ import annotations

import torch

from fedctta.aggregators.fedtsa import foresight
from fedctta.aggregators.fedtsa.foresight import cut_windows, train_ahead
from fedctta.aggregators.fedtsa.noise import prepare_noise
from fedctta.aggregators.fedtsa.training import Training, train
from fedctta.core.randomness import keys, numbered

HOW, KEY = Training(10, 0.1, 1.0, code=False), keys(0, 1)[0]
BYTES = 4 * (12 * 80 + 32 * 24 + 24 * 30)  # that a block takes


def indicators(rounds):
    """Of 3 clients, 4 numbers each, in some rounds."""
    return torch.rand(rounds, 3, 4, generator=torch.Generator().manual_seed(0))


def said_in(said):
    """Return the function that tells indicators of some rounds."""
    return lambda some: said[list(some)].flatten(0, 1)


def test_windows_end_with_their_round():
    x, known = cut_windows(torch.tensor([[[1.0], [2.0], [3.0]]]), 2)
    assert x.flatten(1).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert known.flatten(1).tolist() == [[False, True], [True, True], [True, True]]


def test_every_round_is_trained_on_its_window_with_its_key():
    said = indicators(4)
    ahead = train_ahead(said_in(said), range(4), 3, 2, KEY, HOW)
    key = numbered(KEY, torch.tensor(2))
    alone = train(said[1:3].transpose(0, 1), torch.ones(3, 2, dtype=torch.bool), prepare_noise(key, 3, 2, HOW), HOW)
    torch.testing.assert_close(ahead.clients[2], alone.clients)
    torch.testing.assert_close(ahead.slots[2], alone.slots)


def test_too_many_clients_are_not_foreseen(monkeypatch):
    assert train_ahead(said_in(indicators(4)), range(4), 3, 2, KEY, HOW) is not None
    monkeypatch.setattr(foresight, "LARGEST", 4 * 3 * (3 + 2) - 1)
    assert train_ahead(said_in(indicators(4)), range(4), 3, 2, KEY, HOW) is None


def test_without_a_round_that_aggregates_nothing_is_foreseen():
    assert train_ahead(said_in(indicators(1)), [], 3, 2, KEY, HOW) is None


def test_large_blocks_are_trained_round_by_round_where_few_fit(monkeypatch):
    said, asked = indicators(4), []

    def indicate(some):
        asked.extend(some)
        return said_in(said)(some)

    monkeypatch.setattr(foresight, "AT_ONCE", 32 * 5 * 16 - 1)  # a block has 5 x 16 numbers
    monkeypatch.setattr(foresight, "total_memory", lambda device: 8 * 32 * BYTES - 8)
    assert train_ahead(indicate, range(4), 3, 2, KEY, HOW) is None
    assert asked == [0]
    monkeypatch.setattr(foresight, "total_memory", lambda device: 8 * 32 * BYTES)
    assert train_ahead(indicate, range(4), 3, 2, KEY, HOW).clients.shape == (4, 3, 3)


def test_of_large_blocks_as_few_are_trained_at_once_as_are_worth_it(monkeypatch):
    asked = []
    monkeypatch.setattr(foresight, "train_parts", lambda x, known, keys, at_once, how: asked.append(at_once))
    monkeypatch.setattr(foresight, "AT_ONCE", 1)
    train_ahead(said_in(indicators(320)), range(320), 3, 2, KEY, HOW)
    assert asked == [32]


def test_as_many_blocks_are_trained_at_once_as_fit(monkeypatch):
    asked = []

    def train_parts(x, known, keys, at_once, how):
        asked.append(at_once)
        return x

    monkeypatch.setattr(foresight, "train_parts", train_parts)
    for room in (2**40, 2**17, 0):
        monkeypatch.setattr(foresight, "total_memory", lambda device, room=room: room)
        train_ahead(said_in(indicators(5)), range(5), 3, 2, KEY, HOW)
    assert asked == [5, 1, 1]  # parts are even
    monkeypatch.setattr(foresight, "total_memory", lambda device: 8 * 4 * BYTES)
    train_ahead(said_in(indicators(5)), range(5), 3, 2, KEY, HOW)
    assert asked[-1] == 3
