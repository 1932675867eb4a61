"""Clients before their first batch: the source model, what the method learns from images of the source, and chance."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.core.clients import Client, stack
from fedctta.core.network import Network
from fedctta.core.randomness import keys
from fedctta.core.storage import KEY, Storage, first_keys


def first_client(
    network: Network, adapter: Adapter, images: Callable[[int], Tensor], batch: int, seed: int, number: int = 0
) -> Client:
    """Return client `number` before its first batch; `images` gives as many images of the source as are asked for."""
    client = adapter.init(network)
    if adapter.source_images:
        learnt = adapter.study(network, images(adapter.source_images), batch)
        client = client._replace(private={**client.private, **learnt})
    return _with_keys(client, keys(seed, number + 1, network.device)[number])


def first_clients(
    network: Network,
    adapter: Adapter,
    images: Callable[[int], Tensor],
    batch: int,
    seed: int,
    count: int,
    storage: Storage | None = None,
) -> Client:
    """Return clients 0 to count - 1 as one stack, as they are stored."""
    client = first_client(network, adapter, images, batch, seed)
    clients = _with_keys(
        stack(client if storage is None else storage.begin(client), count), keys(seed, count, network.device)
    )
    if storage is None:
        return clients
    return clients._replace(private={**clients.private, KEY: first_keys(seed, count, network.device)})


def _with_keys(client: Client, key: Tensor) -> Client:
    """Give every client of a method that draws random numbers its own key."""
    return client._replace(private={**client.private, "key": key}) if "key" in client.private else client
