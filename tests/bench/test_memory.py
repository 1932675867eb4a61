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
    assert memory.needed(cell("grad"), "b").device > 3 * 100 * model
    assert memory.needed(cell("bn"), "d").host > 100 * model
    assert memory.needed(cell("bn"), "d").device == 0


def test_fedtsa_draws_noise_for_all_pairs_of_clients():
    more = memory.needed(cell("bn", "fedtsa", 2000), "b").device - memory.needed(cell("bn", "fedavg", 2000), "b").device
    assert more == pytest.approx(4 * 100 * 10 * 2000**2, rel=0.01)


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
