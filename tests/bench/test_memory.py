"""What would not fit is told before it is tried."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench import memory
from fedctta.bench.cells import Cell

CPU = torch.device("cpu")


def cell(adapter="grad", aggregator="fedavg", clients=100, model="resnet8-w16"):
    return Cell(model, adapter, aggregator, clients, 10)


def test_memory_grows_with_what_clients_own():
    model = 4 * 79_962
    assert memory.needed(cell(), "a") == (0, 0)
    assert memory.needed(cell("bn"), "b").device < 0.2 * 100 * model
    assert memory.needed(cell("grad", "fedavgm"), "b").device > 2 * 100 * model
    assert 100 * model < memory.needed(cell("grad"), "b").device < 1.1 * 100 * model  # mixed where they are
    assert memory.needed(cell("grad"), "b", "bf16").device < 0.6 * 100 * model
    assert memory.needed(cell("bn"), "d").host > 100 * model
    assert memory.needed(cell("bn"), "d").device == 0


def test_fedtsa_trains_on_all_pairs_of_clients_and_draws_an_epoch_at_a_time_if_they_are_many():
    def more(clients):
        with_block, without = (memory.needed(cell("bn", name, clients), "b").device for name in ("fedtsa", "fedavg"))
        return with_block - without

    pairs = 10 * 2000**2
    assert 20 * pairs < more(2000) < 100 * pairs  # all 100 epochs' noise would take 400 bytes a pair
    assert more(4000) == pytest.approx(4 * more(2000), rel=0.02)


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(memory, "_free_host", lambda: 1e6)
    assert "GB of memory" in memory.shortage(cell(), "b", CPU)
    assert memory.shortage(cell(), "a", CPU) is None


def test_where_free_memory_is_unknown_everything_is_tried(monkeypatch):
    monkeypatch.setattr(memory, "_free_host", lambda: None)
    assert memory.shortage(cell(clients=10**9), "b", CPU) is None


def test_free_memory_is_some(monkeypatch):
    free = memory._free_host()
    assert free is None or free > 0
