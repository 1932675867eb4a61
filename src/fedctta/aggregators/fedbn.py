"""FedBN: FedAvg, but BatchNorm tensors are not uploaded.

theta_il <- (1/N) sum_j theta_jl      for every tensor l outside BatchNorm layers
theta_il <- theta_il                  for their scales, shifts and statistics, which are not sent at all
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedctta.aggregators.fedavg import FedAvg
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError


@dataclass(frozen=True)
class FedBN(FedAvg):
    """Average all models equally, except BatchNorm tensors, which stay with the client."""

    name: ClassVar[str] = "fedbn"
    title: ClassVar[str] = "FedBN"

    def check(self, network: Network, own: Tensors) -> None:
        """There must be something left to send."""
        if not self.shares(network, own):
            raise UserError(
                "aggregator 'fedbn' keeps BatchNorm tensors at home and this adapter adapts nothing else: use"
                " adapter=grad, or aggregator=local"
            )

    def shares(self, network: Network, own: Tensors) -> Tensors:
        """All but the tensors of BatchNorm layers."""
        return {name: tensor for name, tensor in own.items() if name.rpartition(".")[0] not in network.norms}
