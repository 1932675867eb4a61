"""ATP: every tensor of the model adapts at its own rate, learnt before deployment.

    h      = grad of (1/B) sum_b H(p_b)       for a weight, the model predicting with its stored statistics
    h      = running - batch                  for a running mean or variance; the batch's at that layer, in that pass
    theta <- theta_G - alpha h                one step, alpha one number per tensor; a variance stays at 0 or above

`mode=batch` starts every batch from theta_G and predicts with the result; `mode=online` predicts with the mean of all
results so far, each from theta_G. theta_G is the source model or, for `start=received`, what the server sent last: the
published method does not communicate when deployed. The variance of a batch is the unbiased one.

Rates are learnt on labelled source images (see `fedctta.training.learning`) and may be negative. They lie in a file,
whose name for `rates=auto` holds a hash of the model they were learnt for; a number stands for one rate for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.learnt import read_learnt
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import Statistics, batch_statistics
from fedctta.core.tensors import named, only, under
from fedctta.errors import UserError


@dataclass(frozen=True)
class ATP(Adapter):
    """Take one step from the source, every weight and statistic at its own learnt rate."""

    name: ClassVar[str] = "atp"
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    learns: ClassVar[str] = "rates"
    rates: str = "auto"  # a path, or one number for all tensors
    mode: Literal["batch", "online"] = "batch"
    start: Literal["source", "received"] = "source"

    def __post_init__(self) -> None:
        number = as_number(self.rates)
        if number is not None and not math.isfinite(number):
            raise UserError(f"atp.rates={self.rates} must be finite: give a number, a path or auto")

    def init(self, network: Network) -> Client:
        """Own every parameter and statistic; the rates stay private."""
        own = adaptable(network)
        private = {"rates": self._rates(network)}
        if self.mode == "online":
            private["batches"] = torch.zeros((), device=network.device)
        if self.start == "received":
            private |= named("received", own)
        return Client(own, private)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take the step from where every batch starts, and average if asked to."""
        start = self._first(network, client)
        new = step(start, direction(network, start, x), client.private["rates"])
        if self.mode == "batch":
            return client._replace(own=new)
        batches = client.private["batches"] + 1
        own = {name: torch.lerp(old, new[name], 1 / batches) for name, old in client.own.items()}
        return Client(own, {**client.private, "batches": batches})

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of theta_G, or of the mean of all results so far."""
        return network(self._first(network, client) if self.mode == "batch" else client.own, x).logits

    def _first(self, network: Network, client: Client) -> Tensors:
        """Return theta_G, where every batch starts."""
        return under("received", client.private) if self.start == "received" else adaptable(network)

    @property
    def receives(self) -> bool:
        """Whether a download is where the next batch starts."""
        return self.start == "received"

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Remember the model."""
        if not self.receives:
            return client
        return client._replace(private={**client.private, **named("received", client.own)})

    def reads(self, network: Network) -> tuple[Path, ...]:
        """The rates' file, if they come from one."""
        if as_number(self.rates) is not None:
            return ()
        return (read_learnt(self.name, self.learns, self.rates, network)[0],)

    def check(self, network: Network, batch: int) -> None:
        """There must be rates, and they must be this model's."""
        super().check(network, batch)
        self._rates(network)

    def _rates(self, network: Network) -> Tensor:
        """Return the rates[L], in the order of `adaptable`."""
        names = list(adaptable(network))
        number = as_number(self.rates)
        if number is not None:
            return torch.full((len(names),), number, device=network.device)
        path, rates = read_learnt(self.name, self.learns, self.rates, network)
        odd = next(iter(rates.keys() ^ names), None)
        if odd is not None:
            raise UserError(f"{path} holds rates for another model ({odd}): choose the file of this one")
        if any(rate.numel() != 1 for rate in rates.values()):
            raise UserError(f"{path} does not hold one number a tensor: make it with `fedctta pretrain method=atp`")
        return torch.stack([rates[name].float().reshape(()) for name in names])


def adaptable(network: Network) -> Tensors:
    """Return the source's tensors that have a rate: parameters, then running statistics."""
    return {**network.parameters, **network.statistics}


def direction(network: Network, theta: Tensors, x: Tensor) -> Tensors:
    """Return h for every tensor of theta on images x[B, ...]."""

    def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
        output = network({**theta, **weights}, x, measured)
        return entropy(output.logits).mean(), output.statistics

    gradient, batch = torch.func.grad(loss, has_aux=True)(only(network.parameters, theta))
    return {**gradient, **{name: theta[name] - statistic for name, statistic in batch.items()}}


def measured(name: str, x: Tensor, old: Statistics) -> tuple[Statistics, Statistics]:
    """Normalise with the stored statistics, and keep the batch's (variance unbiased)."""
    mean, var = batch_statistics(x)
    count = x.numel() // x.shape[1]
    return old, Statistics(mean, var * (count / max(count - 1, 1)))


def step(theta: Tensors, h: Tensors, rates: Tensor) -> Tensors:
    """Return theta - rates h, tensor by tensor; variances not below 0."""
    new = {name: theta[name] - rate * h[name] for name, rate in zip(theta, rates.unbind(), strict=True)}
    return {name: t.clamp_min(0) if name.endswith("running_var") else t for name, t in new.items()}


def as_number(text: str) -> float | None:
    """Return the number a parameter spells, if it spells one."""
    try:
        return float(text)
    except ValueError:
        return None
