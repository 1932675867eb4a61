"""What the peers of `peers.py` play: the same clients and batches for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.bench.plain_clients import PlainClient, StatisticsClient, TentClient, norms
from fedctta.core.network import Tensors
from fedctta.machine import choose_device
from fedctta.models.inputs import to_input
from fedctta.models.zoo import load_model
from fedctta.runs.build import choose_parts
from fedctta.runs.cache import Cache
from fedctta.runs.settings import single

DOMAINS = "gaussian_noise+fog+contrast+brightness+defocus_blur"
Tick = Callable[[], None]


class BatchStatistics(StatisticsClient):
    """TTA-bn with variances divided by n, as the method has them; torch's running variance is divided by n - 1."""

    def adapt(self, x: Tensor) -> None:
        """Refresh the statistics."""
        counts: dict[int, float] = {}
        layers = norms(self.model)

        def note(layer: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
            counts[id(layer)] = inputs[0].numel() / inputs[0].shape[1]

        hooks = [layer.register_forward_pre_hook(note) for layer in layers]
        super().adapt(x)
        for layer, hook in zip(layers, hooks, strict=True):
            hook.remove()
            layer.running_var *= 1 - 1 / counts[id(layer)]


METHODS: dict[str, type[PlainClient]] = {"bn": BatchStatistics, "tent": TentClient}


class Task(NamedTuple):
    """What is played."""

    method: str
    clients: int
    rounds: int
    device: str
    cores: int


class Data:
    """The images of every round and client, and what is known of the model; the same for all peers."""

    def __init__(self, task: Task) -> None:
        values = {"stream": "iid", "samples": "overlap", "batch": 10, "slots": -(-task.rounds // 5), "seed": 0}
        self.experiment = single(
            {
                **values,
                "dataset": "cifar10-c",
                "domains": DOMAINS,
                "model": "resnet8",
                "adapter": task.method,
                "aggregator": "fedavg",
                "clients": task.clients,
                "device": task.device,
            }
        )
        self.device = choose_device(task.device)
        self.parts = choose_parts(self.experiment, self.device, Cache())
        self.rounds = len(self.parts.stream)
        self.slots = [self.parts.stream.slot(t) for t in range(self.rounds)]  # in memory: reading is not measured

    def batch(self, t: int, client: int) -> Tensor:
        """Return a client's images of round t on the device."""
        return to_input(self.slots[t].images[client], self.device)

    def count_right(self, t: int, client: int, logits: Tensor) -> int:
        """Return how many predictions of a client's batch are right."""
        return int((logits.argmax(1).cpu().numpy() == self.slots[t].labels[client]).sum())

    def accuracy(self, right: int) -> float:
        """Return percent of all images."""
        return 100 * right / (self.rounds * self.parts.stream.clients * 10)

    def make_client(self, method: str) -> PlainClient:
        """Return a client with the source model."""
        return METHODS[method](load_model("resnet8", "cifar10").to(self.device))


@torch.no_grad()
def write_over(client: PlainClient, tensors: Tensors) -> None:
    """Put tensors into a client's model."""
    for name, mine in client.upload().items():
        mine.copy_(tensors[name])
