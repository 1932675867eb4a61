"""What a download is worth to a device that does not wait: accuracy by momentum of `bn`, with rounds batches apart.

Run as `python benchmarks/free_running.py`.
"""

from __future__ import annotations

import torch

from fedctta.core.clients import Client
from fedctta.core.network import Tensors
from fedctta.fleet.server.collaboration import Hub, Standing, Upload
from fedctta.models.inputs import to_input
from fedctta.runs.build import choose_parts, federate
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

CLIENTS, EVERY, LATE = 4, 8, 2  # a round every 8 batches; its downloads are there 2 batches later
MOMENTA = (1.0, 0.5, 0.3, 0.2, 0.1)


def accuracy(cache: Cache, aggregator: str | None, momentum: float, clusters: int, blend: float = 0.0) -> float:
    """Percent of images right. With `blend`, downloads are kept apart and blended into what predicts."""
    words = {"dataset": "shapes-c", "clients": CLIENTS, "slots": 10, "niid.clusters": clusters}
    words |= {"aggregator": aggregator or "fedavg", "bn.momentum": momentum}
    experiment = single(words)
    parts = choose_parts(experiment, torch.device("cpu"), cache)
    federation, stream = federate(experiment, parts), parts.stream
    network, adapter, method = federation.network, federation.adapter, federation.aggregator
    clients = [adapter.init(network)] * CLIENTS
    hub = Hub(method, federation.server, method.shares(network, clients[0].own))
    standing, due, right, seen = hub.start(), -1, 0, 0
    received: list[Tensors] = [{} for _ in range(CLIENTS)]

    def closed(batches: torch.Tensor, before: Standing) -> Standing:
        sent = {k: Upload(c.own, method.signal(network, c, batches[k])) for k, c in enumerate(clients)}
        return hub.close(before, sent).standing

    for t in range(len(stream)):
        slot = stream.slot(t)
        x, labels = to_input(slot.images, network.device), torch.from_numpy(slot.labels)
        for k in range(CLIENTS):
            if t == due:
                received[k] = {name: rows[k] for name, rows in standing.rows.items()}
                clients[k] = clients[k] if blend else Client({**clients[k].own, **received[k]})
            clients[k] = adapter.adapt(network, clients[k], x[k])
            mixed = {n: r.lerp(clients[k].own[n], 1 - blend) for n, r in received[k].items()} if blend else {}
            logits = adapter.predict(network, Client({**clients[k].own, **mixed}), x[k])
            right, seen = right + int((logits.argmax(1) == labels[k]).sum()), seen + len(labels[k])
        if aggregator is not None and t % EVERY == EVERY - 1:
            standing, due = closed(x, standing), t + LATE
    return 100 * right / seen


def main() -> None:
    cache = Cache()
    print(
        f"{CLIENTS} clients, a round every {EVERY} batches; momentum {', '.join(map(str, MOMENTA))}; then blends at 1"
    )
    with torch.no_grad():
        for clusters in (4, 2, 1):
            for name in (None, "fedavg", "fedctta"):
                row = [f"{accuracy(cache, name, momentum, clusters):.1f}" for momentum in MOMENTA]
                row += [f"{accuracy(cache, name, 1.0, clusters, blend):.1f}" for blend in (0.3, 0.5) if name]
                print(f"{clusters} domains at a time, {name or 'alone':8}", *row, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
