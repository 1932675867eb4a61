"""No adaptation: the source model as it is (the papers' No-Adapt and Source rows)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.core.clients import Client
from fedctta.core.network import Network


@dataclass(frozen=True)
class NoAdaptation(Adapter):
    """Predict with the source model; nothing is adapted and nothing is uploaded."""

    name: ClassVar[str] = "none"
    short: ClassVar[bool] = True
    title: ClassVar[str] = "No-Adapt"
    colour: ClassVar[str] = "#8a8f98"
    adapts: ClassVar[bool] = False

    def init(self, network: Network) -> Client:
        """Own nothing."""
        return Client(own={})

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Change nothing."""
        return client

    def predicts_alike(self, communicates: bool) -> bool:
        """There is no update."""
        return True
