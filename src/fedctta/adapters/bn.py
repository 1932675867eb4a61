"""TTA-bn: a client's model is the statistics of its BatchNorm layers, refreshed from every batch.

At layer l, with m_l and v_l the mean and biased variance of the batch (FedCTTA Eq. 3-4):

    mu_l  <- (1 - a) mu_l  + a m_l
    var_l <- (1 - a) var_l + a v_l

The layer normalises with the new values, so deeper layers see what prediction will see. Weights, scales and shifts
stay those of the source. a = 1 keeps nothing of earlier batches: that is what both papers ran.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.needs import Need
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.errors import UserError
from fedctta.ranges import PositiveShare


@dataclass(frozen=True)
class BatchStatistics(Adapter):
    """Refresh BatchNorm statistics from the batch (no gradient); momentum 1 uses the batch alone."""

    name: ClassVar[str] = "bn"
    short: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("batchnorm",)
    single_images: ClassVar[bool] = False
    momentum: PositiveShare = 1.0

    @property
    def measures(self) -> bool:
        """Without momentum, statistics are of one batch."""
        return self.momentum == 1

    def init(self, network: Network) -> Client:
        """Own the statistics of every BatchNorm layer."""
        return Client(own=network.statistics)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Refresh the statistics, layer by layer."""
        return self.adapt_and_predict(network, client, x)[0]

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Refresh; the pass normalises as prediction does."""
        output = network(client.own, x, refreshed(self.momentum))
        return client._replace(own=output.statistics), output.logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return the logits[B, K] of the pass that refreshes: held statistics and the batch's, no server in between."""
        return self.adapt_and_predict(network, client, x)[1]

    def predicts_alike(self, communicates: bool) -> bool:
        """Alone, the statistics of that pass are those of the prediction."""
        return not communicates

    def check(self, network: Network, batch: int) -> None:
        """Batch statistics need BatchNorm layers and, without momentum, more than one image."""
        super().check(network, batch)
        if batch < 2 and self.momentum == 1:
            raise UserError("batch=1 gives no batch statistics: use batch=2 or more, or bn.momentum below 1 (say 0.1)")
