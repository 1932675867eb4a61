"""Train a network by federated averaging: its images lie with several source clients and never meet.

In every round each client i, with n_i images, starts from the server's model w and trains on its own images alone;

    w <- sum_i (n_i / n) w_i        all floating-point tensors, BatchNorm's statistics too

What optimisers remember (momentum, Adam's moments) is averaged alike, so that one client alone trains exactly as
`central.train` does; `memory="fresh"` forgets it before every round, as plain federated averaging does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedctta.errors import UserError, unknown
from fedctta.models.inputs import as_tensor
from fedctta.registry import MayBeInfinite
from fedctta.training.central import OnProgress, check_pairs, make_optimizer, train_epoch
from fedctta.training.recipe import Recipe

MEMORIES = ("averaged", "fresh")
SMALLEST_BATCH = 16


@dataclass(frozen=True)
class FederatedRecipe:
    """How source clients train together: `rounds` x `local_epochs` replace the recipe's epochs.

    `skew` is the Dirichlet concentration by which every class is divided among the clients, inf for equal parts.
    """

    source_clients: int = 10
    rounds: int = 60
    local_epochs: int = 1
    skew: MayBeInfinite = math.inf
    memory: str = "averaged"

    def __post_init__(self) -> None:
        for name in ("source_clients", "rounds", "local_epochs"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} must be at least 1")
        if not self.skew > 0:
            raise UserError(f"skew={self.skew} must be above 0 (inf: equal parts)")
        if self.memory not in MEMORIES:
            raise unknown("memory", self.memory, MEMORIES)

    @property
    def epochs(self) -> int:
        """How often every image is seen in all."""
        return self.rounds * self.local_epochs

    def share(self, batch: int) -> int:
        """Return a client's part of a batch: as many as keep an epoch's steps, but not fewer than BatchNorm needs."""
        return min(batch, max(SMALLEST_BATCH, batch // self.source_clients))


def train_federated(
    module: nn.Module,
    images: NDArray[Any] | Tensor,
    labels: NDArray[Any] | Tensor,
    recipe: Recipe,
    federation: FederatedRecipe,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
    *,
    bf16: bool = False,
) -> nn.Module:
    """Train `module` in place as `train` does, on uint8 images [n, H, W, 3] divided among source clients.

    The learning rate runs its course over all rounds. `on_progress` is called after every round, with the mean loss
    over all images in the round's last local epoch. The same arguments give the same weights.
    """
    device = torch.device(device)
    check_pairs(images, labels)
    recipe = replace(recipe, epochs=federation.epochs)
    parts = divide(np.asarray(labels), federation.source_clients, federation.skew, recipe.seed)
    pixels, targets = as_tensor(images), as_tensor(labels).to(torch.int64)
    data = [(pixels[part].to(device), targets[part].to(device)) for part in map(torch.from_numpy, parts)]
    generators = [torch.Generator().manual_seed(seed) for seed in _seeds(recipe.seed, len(parts))]
    shares = [len(part) / len(pixels) for part in parts]

    module.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = make_optimizer(module, recipe, fused=device.type == "cuda")
    state = _take(module, optimizer)
    with torch.backends.cudnn.flags(enabled=True, benchmark=bf16, deterministic=not bf16):
        for number in range(federation.rounds):
            mean, loss = _Mean(), 0.0
            for (x, y), generator, share in zip(data, generators, shares, strict=True):
                _put(state, module, optimizer, forget=federation.memory == "fresh")
                for epoch in range(number * federation.local_epochs, (number + 1) * federation.local_epochs):
                    last = train_epoch(module, x, y, recipe, optimizer, generator, epoch, bf16)
                mean.add(_take(module, optimizer), share)
                loss += share * last
            if not math.isfinite(loss):
                raise UserError(f"training diverged in round {number + 1} (loss {loss}): lower the recipe's lr")
            state = mean.tensors
            if on_progress is not None:
                on_progress(number + 1, federation.rounds, loss)
    _put(state, module, optimizer)
    return module.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload, no-any-return]


def divide(labels: NDArray[Any], clients: int, skew: float, seed: int) -> list[NDArray[np.int64]]:
    """Return the indices of each client's images, in rising order; every image goes to one client.

    Equal parts by chance for skew=inf. Else client i gets a share p_ki of the images of class k, with
    p_k ~ Dirichlet(skew 1); sizes then differ, and clients that get nothing are left out.
    """
    if seed < 0:
        raise UserError(f"seed={seed} must not be negative")
    if clients > len(labels):
        raise UserError(f"{len(labels)} images are too few for source_clients={clients}: use fewer clients")
    rng = np.random.default_rng(seed)
    if skew == math.inf:
        parts = np.array_split(rng.permutation(len(labels)), clients)
    else:
        cuts = []
        for k in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == k))
            ends = np.cumsum(rng.dirichlet(np.full(clients, skew)))[:-1]
            cuts.append(np.split(members, np.round(ends * len(members)).astype(np.int64)))
        parts = [np.concatenate(own) for own in zip(*cuts, strict=True)]
    return [np.sort(part).astype(np.int64) for part in parts if len(part)]


def _seeds(seed: int, clients: int) -> list[int]:
    """One seed a client; the first client's is that of training alone."""
    return [seed, *np.random.SeedSequence(seed).generate_state(clients).tolist()][:clients]


def _take(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copy every tensor of the module ("name") and of the optimiser's memory ("name/key")."""
    found = dict(module.state_dict())
    for name, parameter in module.named_parameters():
        found |= {f"{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    return {name: tensor.detach().clone() for name, tensor in found.items() if tensor is not None}


def _put(
    state: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, *, forget: bool = False
) -> None:
    """Put back what `_take` took; `forget` leaves the optimiser without memory."""
    module.load_state_dict({name: state[name] for name in module.state_dict()})
    optimizer.state.clear()
    if forget:
        return
    for name, parameter in module.named_parameters():
        kept = {key.rpartition("/")[2]: value for key, value in state.items() if key.startswith(f"{name}/")}
        if kept:
            optimizer.state[parameter] = {key: value.clone() for key, value in kept.items()}


class _Mean:
    """The sum of share x tensor, by name. Tensors of integers are the first client's: there is no half a count."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def add(self, state: dict[str, Tensor], share: float) -> None:
        for name, tensor in state.items():
            if name not in self.tensors:
                self.tensors[name] = tensor * share if tensor.is_floating_point() else tensor
            elif tensor.is_floating_point():
                self.tensors[name] += share * tensor
