"""The server as a first version is written: what clients compute for it, and the matrix W it makes of that.

`published` asks for what published code does: another probe for every client, and FedTSA's block as a module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedctta.aggregators.fedctta import FedCTTA
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.aggregators.fedtsa.noise import prepare_noise
from fedctta.aggregators.fedtsa.training import train
from fedctta.bench.block import train_block
from fedctta.bench.plain_clients import PlainClient

Signal = Callable[[PlainClient, Tensor], Tensor]  # of a client and its batch
Weigh = Callable[[list[Tensor]], Tensor]  # all clients' signals to W[N, N]


def make_signal(aggregator: str, source: nn.Module, device: torch.device, published: bool) -> Signal | None:
    """Return what a client computes for the server beside its model, if anything."""
    if aggregator == "fedctta":
        probe = torch.rand(FedCTTA().count, 3, 32, 32, device=device)
        return lambda client, x: client.answer(torch.rand_like(probe) if published else probe)
    if aggregator == "fedtsa":
        headless = _without_classifier(source).to(device)

        @torch.no_grad()
        def feature(client: PlainClient, x: Tensor) -> Tensor:
            mean: Tensor = headless(x).mean(0)
            return mean

        return feature
    return None


def make_weigh(aggregator: str, device: torch.device, published: bool) -> Weigh:
    """Return the function from signals to W; it remembers what the method does."""
    return _Probed() if aggregator == "fedctta" else _Attended(device, published)


class _Probed:
    """FedCTTA: smoothed answers, compared by their distance."""

    def __init__(self) -> None:
        self.smooth: Tensor | None = None

    def __call__(self, signals: list[Tensor]) -> Tensor:
        new = torch.stack(signals)
        self.smooth = new if self.smooth is None else FedCTTA.ema * self.smooth + (1 - FedCTTA.ema) * new
        return torch.softmax(-torch.cdist(self.smooth, self.smooth), dim=1)


class _Attended:
    """FedTSA: a block trained anew in every round, operation by operation."""

    def __init__(self, device: torch.device, published: bool) -> None:
        self.device, self.published = device, published
        self.method = FedTSA("code" if published else "paper")
        self.history: list[Tensor] = []

    def __call__(self, signals: list[Tensor]) -> Tensor:
        slots, how = self.method.constants.window, self.method.training
        now = torch.stack(signals).to(self.device)
        self.history = [*(self.history or [now] * slots)[1 - slots :], now]  # full from the start
        x = torch.stack(self.history, 1)
        if self.published:
            return train_block(x, how).cpu()
        noise = prepare_noise(torch.randint(2**32, (), device=x.device), len(x), slots, how)
        return train(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device), noise, how).clients


def _without_classifier(source: nn.Module) -> nn.Module:
    model = copy.deepcopy(source).eval()
    last = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]
    model.set_submodule(last, nn.Identity())
    return model
