"""Clients before their first batch: in a stack, and each for itself."""

from __future__ import annotations

import pytest
import torch

from fedctta.adapters import adapters
from fedctta.core.randomness import keys
from fedctta.engine.first_clients import first_client, first_clients


def images(count):
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(count))


def no_images(count):
    pytest.fail("this method asks for no images")


@pytest.mark.parametrize("name", ["bn", "eata", "memo", "roid"])
def test_a_client_begins_as_its_number_in_a_stack_does(name, tiny_network):
    adapter = adapters.create(name)
    together = first_clients(tiny_network, adapter, images, 4, 5, 3)
    for number in range(3):
        alone = first_client(tiny_network, adapter, images, 4, 5, number)
        for part, parts in zip(alone, together, strict=True):
            assert list(part) == list(parts)
            assert all(torch.equal(tensor, parts[tensor_name][number]) for tensor_name, tensor in part.items())


def test_every_client_has_its_own_key(tiny_network):
    clients = first_clients(tiny_network, adapters.create("roid"), no_images, 4, 5, 3)
    assert clients.private["key"].tolist() == keys(5, 3).tolist()
    assert len(set(clients.private["key"].tolist())) == 3


def test_what_is_learnt_from_images_of_the_source_is_private(tiny_network):
    adapter = adapters.create("eata", {"images": 8})
    client = first_client(tiny_network, adapter, images, 4, 0)
    learnt = adapter.study(tiny_network, images(8), 4)
    assert learnt
    assert all(torch.equal(client.private[name], tensor) for name, tensor in learnt.items())
    assert client.own.keys() == adapter.init(tiny_network).own.keys()
