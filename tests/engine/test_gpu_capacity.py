"""What clients hold is counted, and no more of them adapt at once than a GPU has room for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedctta.adapters import adapters
from fedctta.core.clients import Client, by_vmap, stack
from fedctta.core.network import Network
from fedctta.engine import gpu_capacity
from fedctta.engine.gpu_capacity import clients_that_fit, kept_for_backward
from fedctta.models import build


def test_what_a_pass_keeps_by_hand():
    network = Network(nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.Tanh()))
    # of an image: what ReLU gives (12 numbers) and what tanh gives (5); a flat view and the weights are not more
    assert kept_for_backward(network, (3, 2, 2)) == 4 * (12 + 5)


def test_nothing_is_left_in_the_network(tiny_network):
    kept_for_backward(tiny_network, (3, 8, 8))
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in tiny_network.state.values())


def test_a_cpu_has_no_limit(tiny_network):
    assert clients_that_fit(tiny_network, Client({}), 10, (3, 8, 8)) is None


@pytest.fixture
def on_gpu(monkeypatch):
    """Let the network be on a GPU with the given memory."""

    def pretend(network, memory):
        monkeypatch.setattr(type(network), "device", torch.device("cuda"))
        monkeypatch.setattr(gpu_capacity, "kept_for_backward", lambda network, shape: 1000.0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=memory))

    return pretend


def test_as_many_fit_as_a_quarter_of_the_memory_holds(tiny_network, on_gpu):
    client = Client({"a": torch.zeros(50)}, {"b": torch.zeros(100)})
    each = 6 * 10 * 1000 + 4 * 4 * 150
    on_gpu(tiny_network, 4 * each * 7 + 5)
    assert clients_that_fit(tiny_network, client, 10, (3, 8, 8)) == 7
    on_gpu(tiny_network, 10)
    assert clients_that_fit(tiny_network, client, 10, (3, 8, 8)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("adapter", ["bn", "tent", "grad", "bbn"])
def test_a_round_takes_no_more_than_is_counted(adapter):
    """What torch allocates for clients that adapt, beside what is counted for them, which is rough."""
    network, method, clients, batch = Network(build("resnet18"), "cuda"), adapters.create(adapter), 8, 10
    fit = clients_that_fit(network, method.init(network), batch, (3, 32, 32))
    everyone, x = stack(method.init(network), clients), torch.rand(clients, batch, 3, 32, 32, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    by_vmap(lambda client, images: method.adapt(network, client, images))(everyone, x)
    counted = clients * gpu_capacity.SHARE * torch.cuda.get_device_properties(0).total_memory / fit
    assert torch.cuda.max_memory_allocated() - before < 1.5 * counted
