"""FedTSA's block the way its published code has it: modules, masks drawn by numpy client by client, torch's Adam.

The equations are in `fedctta.aggregators.fedtsa`; what is drawn for the masks is `masks.draw_sized_masks`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedctta.aggregators.fedtsa.training import Training

_RANDOM = np.random.default_rng(0)


class Attention(nn.Module):
    """Attention over the second last axis; layers start as the identity, and that of values stays so."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        for layer in (self.query, self.key, self.value):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.value.requires_grad_(False)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and the attention."""
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(x.shape[-1])
        if keep is not None:
            scores = scores.masked_fill(~keep, -torch.inf)
        weights = scores.softmax(-1)
        return weights @ self.value(x), weights.detach()


@torch.enable_grad()
def train_block(x: Tensor, how: Training) -> Tensor:
    """Train a fresh block on x[N, T, D] and return the W of the epoch with the lowest loss."""
    over_time, over_clients = (Attention(x.shape[-1]).to(x.device) for _ in range(2))
    optimiser = torch.optim.Adam([*over_time.parameters(), *over_clients.parameters()], lr=how.lr)
    lowest, best = math.inf, torch.eye(len(x), device=x.device)
    for _ in range(how.epochs):
        mixed, a = over_time(x)
        output, s = over_clients(mixed.transpose(0, 1))
        again, _ = over_time(x, _time_mask(a))
        masked, _ = over_clients(again.transpose(0, 1), _client_mask(s[-1], mixed[:, -1].detach()))
        loss = F.mse_loss(output, x.transpose(0, 1)) + how.lam * F.mse_loss(output, masked)
        if loss.item() < lowest:
            lowest, best = loss.item(), s[-1]
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return best


def _time_mask(a: Tensor) -> Tensor:
    """Drop three quarters of every client's pairs of slots."""
    keep = np.ones(a.shape, dtype=bool)
    for i, chance in enumerate((1 - a).cpu().double().numpy()):
        keep[i].reshape(-1)[_draw(chance.reshape(-1), 3 * chance.size // 4)] = False
        np.fill_diagonal(keep[i], True)
    return torch.from_numpy(keep).to(a.device)


def _client_mask(s: Tensor, x: Tensor) -> Tensor:
    """Drop four fifths of the edges between clients that are alike, add a fifth of those that are missing."""
    unit = F.normalize(x, dim=1)
    cosine = (unit @ unit.T).cpu().numpy()
    weights, apart = s.cpu().double().numpy(), ~np.eye(len(s), dtype=bool)
    near = cosine > cosine.mean()
    keep = near & apart
    for entries, share, chance, value in (
        (near & apart, 0.8, 1 - weights, False),
        (~near & apart, 1 - 0.8, weights, True),
    ):
        rows, columns = np.nonzero(entries)
        drawn = _draw(chance[rows, columns], int(share * len(rows)))
        keep[rows[drawn], columns[drawn]] = value
    return torch.from_numpy(keep | ~apart).to(s.device)


def _draw(chance: NDArray[Any], count: int) -> NDArray[Any]:
    """Draw a number of places without replacement, by their probabilities."""
    chance = np.maximum(chance, 0) + 1e-30
    return _RANDOM.choice(len(chance), count, replace=False, p=chance / chance.sum()) if count else np.zeros(0, int)
