"""What FedTSA's server costs a round, against the way its published code does it; and that memory does not grow.

    python benchmarks/fedtsa.py [--clients 20] [--dim 256] [--window 10] [--epochs 100] [--device auto]

One run prints milliseconds per round (drawing masks and training the block) of

(a) ours with the paper's masks and loss,
(b) ours with the published code's masks and loss,
(c) the straightforward way to do what (b) does: a module of six linear layers, every pass on its own, masks drawn by
    numpy in a loop over clients, torch's Adam, the loss read back in every epoch, a bank that grows,

each the median over interleaved repeats, so that a busy machine slows all three alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.fedtsa import FedTSA
from fedctta.core.clients import by_vmap
from fedctta.core.network import Network
from fedctta.machine import arithmetic, choose_device, peak_memory_mb, reset_peak_memory

RANDOM = np.random.default_rng(0)


class Layer(nn.Module):
    """Attention over the second last axis, with the layers that never change computed as well."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim).requires_grad_(False)
        for linear in (self.q, self.k, self.v):
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and the attention."""
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / np.sqrt(x.shape[-1])
        if keep is not None:
            scores = scores.masked_fill(keep == 0, -np.inf)
        weights = scores.softmax(-1)
        return weights @ self.v(x), weights.detach()


def mask_time(a: Tensor) -> Tensor:
    mask, slots = torch.ones_like(a), a.shape[-1]
    for i, probability in enumerate((1 - a).cpu().double().numpy()):
        if probability.sum() > 0:
            flat = probability.reshape(-1) / probability.sum()
            size = min(int(0.75 * slots**2), int((flat > 0).sum()))
            mask[i].view(-1)[RANDOM.choice(slots**2, size, replace=False, p=flat)] = 0
        for t in range(slots):
            mask[i, t, t] = 1
    return mask


def mask_space(s: Tensor, x: Tensor) -> Tensor:
    unit = x / x.norm(dim=1, keepdim=True)
    graph = (unit @ unit.T > (unit @ unit.T).mean()).float()
    loops = torch.eye(len(graph), device=graph.device)
    mask = graph - loops * graph
    for entries, share, value, weight in ((mask, 0.8, 0.0, 1 - s), (1 - torch.maximum(graph, loops), 1 - 0.8, 1.0, s)):
        where = entries.nonzero()
        if len(where):
            probability = weight[where[:, 0], where[:, 1]].cpu().double().numpy() + 1e-30
            chosen = RANDOM.choice(
                len(where), int(share * len(where)), replace=False, p=probability / probability.sum()
            )
            mask[where[chosen, 0], where[chosen, 1]] = value
    return mask + loops


class Straightforward:
    """The same server with growing history."""

    def __init__(self, history: Tensor, epochs: int) -> None:
        self.window, self.epochs, self.bank = history.shape[1], epochs, history

    def __call__(self, indicator: Tensor) -> Tensor:
        """Return W."""
        self.bank = torch.cat([self.bank, indicator[:, None]], 1)
        x = self.bank[:, -self.window :]
        over_time, over_clients = Layer(x.shape[-1]).to(x.device), Layer(x.shape[-1]).to(x.device)
        optimiser = torch.optim.Adam([*over_time.parameters(), *over_clients.parameters()], lr=1e-4)
        lowest, best = 1e6, torch.eye(len(x))
        for _ in range(self.epochs):
            mixed, a = over_time(x)
            output, s = over_clients(mixed.transpose(0, 1))
            space = mask_space(s[-1], mixed[:, -1].detach())
            again, _ = over_time(x, mask_time(a))
            masked, _ = over_clients(again.transpose(0, 1), space)
            mse = nn.functional.mse_loss
            loss = mse(output, x.transpose(0, 1)) + 0.1 * mse(output, masked)
            if loss.item() < lowest:
                lowest, best = loss.item(), s[-1]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return best


class Ours:
    """FedTSA with its memory."""

    def __init__(self, variant: Literal["paper", "code"], history: Tensor, epochs: int) -> None:
        network = Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), history.device)
        self.server = Server(network, by_vmap, 0, (1, 2, 2), len(history), lambda count: torch.zeros(count, 1, 2, 2))
        self.aggregator = FedTSA(variant, window=history.shape[1], epochs=epochs)
        known = torch.ones(history.shape[:2], dtype=torch.bool, device=history.device)
        self.memory = self.aggregator.init(self.server) | {"window": history, "known": known}

    @torch.no_grad()
    def __call__(self, indicator: Tensor) -> Tensor:
        """Return W."""
        everyone = torch.ones(len(indicator), dtype=torch.bool, device=indicator.device)
        uploads = Uploads({}, {"indicator": indicator}, everyone)
        weights, self.memory = self.aggregator.collaborate(self.server, uploads, self.memory)
        return weights


def indicators(clients: int, dim: int, t: int) -> Tensor:
    """Mean features as of a network that ends in ReLU, in four domains that differ a little."""
    generator = torch.Generator().manual_seed(t)
    domain = torch.rand(4, dim, generator=torch.Generator().manual_seed(-1 - t // 50))
    return domain[torch.arange(clients) * 4 // clients] + 0.3 * torch.rand(clients, dim, generator=generator)


def seconds(action: Callable[[Tensor], Tensor], indicator: Tensor) -> float:
    began = time.perf_counter()
    action(indicator).cpu()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory-rounds", type=int, default=40)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)

    def arriving(t: int) -> Tensor:
        return indicators(options.clients, options.dim, t).to(device)

    history = torch.stack([arriving(t) for t in range(options.window)], 1)
    ours = Ours("paper", history, options.epochs)
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "(a) ours, paper": ours,
        "(b) ours, code": Ours("code", history, options.epochs),
        "(c) straightforward": Straightforward(history, options.epochs),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    with arithmetic():
        for t in range(options.repeats + 1):
            for name, way in ways.items():
                spent = seconds(way, arriving(options.window + t))
                if t:  # the first is for warming up
                    took[name].append(spent)
        size = f"{options.clients} clients, D = {options.dim}, T = {options.window}, {options.epochs} epochs"
        print(f"{size}, {device}, {torch.get_num_threads()} CPU threads")
        ms = {name: 1000 * statistics.median(times) for name, times in took.items()}
        for name, value in ms.items():
            ratio = ms["(c) straightforward"] / value
            print(
                f"{name:20}{value:8.0f} ms per round (best {1000 * min(took[name]):.0f}){ratio:8.2f} x as fast as (c)"
            )
        reset_peak_memory(device)
        for t in range(options.memory_rounds):
            ours(arriving(t))
            if t + 1 in (options.memory_rounds // 4, options.memory_rounds):
                kib = sum(tensor.nbytes for tensor in ours.memory.values()) / 1024
                print(f"after {t + 1:4} rounds: the server holds {kib:.1f} KiB, peak {peak_memory_mb(device):.1f} MB")


if __name__ == "__main__":
    main()
