"""What one client does with one batch of unlabelled images. One method a file.

An adapter is written for a single client and knows nothing of the others; the engine lifts it to all of them. It is a
frozen dataclass: its fields are its parameters, reachable from the command line as `name.parameter=value`.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from torch import Tensor

from fedctta.clients import Client
from fedctta.network import Network, Tensors
from fedctta.registry import Registry


class Adapter:
    """A client method: how a client starts, adapts to a batch, and predicts."""

    name: ClassVar[str]

    def init(self, network: Network) -> Client:
        """Return a client before its first batch, made from the source model."""
        raise TypeError(f"{type(self).__name__} must define init")

    @property
    def source_images(self) -> int:
        """How many clean, unlabelled images of the source `study` wants; 0 for none."""
        return 0

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return what is learnt from source images before deployment; every client keeps it privately.

        `batch` is how many images a client will see at once.
        """
        return {}

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Return the client after it has seen x[B, ...]. Pure; no labels."""
        raise TypeError(f"{type(self).__name__} must define adapt")

    @property
    def measures(self) -> bool:
        """Whether all that a client owns is measured on the batch at hand, with nothing older in it."""
        return False

    @property
    def receives(self) -> bool:
        """Whether the client does something with a model it is sent, beside predicting with it (see `receive`)."""
        return False

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Return the client after a download and before it predicts x[B, ...]. Pure; no labels."""
        return client

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K]: the model with the client's own tensors, statistics as stored."""
        return network(client.own, x).logits

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K] of x by the model that the update on x starts from (`predict=before`). Pure; no labels.

        Called in place of `predict`, with the client as it is before `adapt`. A method overrides it where its update
        starts from another model than the client holds, or where its `predict` reads what `adapt` has left.
        """
        return self.predict(network, client, x)

    def predicts_alike(self, communicates: bool) -> bool:
        """Whether predictions before and after the update are the same; `communicates`: a server comes in between."""
        return False

    def reads(self, network: Network) -> tuple[Path, ...]:
        """Return the files, beside the model's weights, on which results depend: a run is not reused when they change.

        Asked after `check`, so they are there.
        """
        return ()

    def check(self, network: Network, batch: int) -> None:
        """Raise a UserError if this model or batch size cannot be adapted."""


adapters: Registry[Adapter] = Registry("adapter", __name__)
