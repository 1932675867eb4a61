"""BatchNorm statistics without gradients: mixed with the source's, or carried along.

    norm-alpha   mu = (1 - a) mu_source + a m,   and so for variances; anew from every batch
    norm-ema     mu <- (1 - a) mu + a m          a running average, as in training; the client predicts with it
    dua          norm-ema with a momentum that fades: rho <- 0.94 rho,  a = rho + 0.005

m is the batch's mean; variances are the batch's own (biased) for norm-alpha, where published code takes the unbiased
one, and unbiased for the other two, as in training. With a = 1 norm-alpha is `bn`. DUA as published feeds 64 augmented
copies of one image at a time and picks its best step by labels; here it takes the client's batch and picks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.needs import Need
from fedctta.core.clients import Client
from fedctta.core.network import Network, Output
from fedctta.core.norms import refreshed, training
from fedctta.core.outputs import count_rows
from fedctta.ranges import CountOrZero, PositiveShare, Share


class StatisticsAdapter(Adapter):
    """What adapters share that own the statistics of BatchNorm layers."""

    needs: ClassVar[tuple[Need, ...]] = ("batchnorm",)

    def init(self, network: Network) -> Client:
        """Own the statistics of every BatchNorm layer."""
        return Client(own=network.statistics)


@dataclass(frozen=True)
class NormAlpha(StatisticsAdapter):
    """Mix the batch's BatchNorm statistics with the source's, anew for every batch."""

    name: ClassVar[str] = "norm-alpha"
    short: ClassVar[bool] = True
    alpha: Share = 0.1
    prior: CountOrZero = 0  # above 0: alpha = B / (B + prior), the source worth as many images as `prior`

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Start from the source model, not from the client's."""
        return self.adapt_and_predict(network, client, x)[0]

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Mix; the pass normalises as prediction does."""
        output = self._mix(network, x)
        return client._replace(own=output.statistics), output.logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of the pass that mixes the source's and the batch's statistics."""
        return self._mix(network, x).logits

    def predicts_alike(self, communicates: bool) -> bool:
        """Alone, the statistics of that pass are those of the prediction."""
        return not communicates

    def _mix(self, network: Network, x: Tensor) -> Output:
        alpha = count_rows(x) / (count_rows(x) + self.prior) if self.prior else self.alpha
        return network({}, x, refreshed(alpha))


@dataclass(frozen=True)
class NormEMA(StatisticsAdapter):
    """Carry a running average of the batches' BatchNorm statistics along."""

    name: ClassVar[str] = "norm-ema"
    short: ClassVar[bool] = True
    momentum: PositiveShare = 0.1

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Move the average by one batch."""
        return client._replace(own=network(client.own, x, training(self.momentum)).statistics)


@dataclass(frozen=True)
class DUA(StatisticsAdapter):
    """Carry a running average of BatchNorm statistics along, with a momentum that fades to a floor."""

    name: ClassVar[str] = "dua"
    decay: Share = 0.94
    start: Share = 0.1
    floor: Share = 0.005

    def init(self, network: Network) -> Client:
        """Own the statistics; the momentum is private."""
        return Client(network.statistics, {"rho": torch.tensor(self.start, device=network.device)})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Move the average by one batch and fade."""
        rho = self.decay * client.private["rho"]
        momentum = (rho + self.floor).clamp(max=1)
        return Client(network(client.own, x, training(momentum)).statistics, {"rho": rho})
