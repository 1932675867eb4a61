"""What one client does with one batch of unlabelled images. One method per file.

An adapter is written for one client and knows nothing about the others; the engine lifts it to all of them. It is a
frozen dataclass: its fields are its parameters, reachable from the command line as `name.parameter=value`.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from torch import Tensor

from fedctta.adapters.common.needs import Need, meets, refusal
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError
from fedctta.registry import Registry, check_ranges


class Adapter:
    """A client method: how a client starts, adapts to a batch, and predicts.

    A batch x is a tensor. On one device it may also be a tuple or dictionary of tensors (see `core.outputs`), unless
    the method works on `pictures`: other methods hand x to the network, and ask nothing of it but `count_rows`.
    What others must know of it stands in class attributes. `title` and `colour` are not inherited.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # in tables; without one, the name
    without_images: ClassVar[str] = ""  # a parameter=value with which it asks for no images of the source
    pictures: ClassVar[bool] = False  # True: works on colour pictures [B, 3, H, W] in [0, 1] only
    looks: ClassVar[bool] = False  # True: looks at images [B, C, H, W] or series [B, C, T]
    colour: ClassVar[str] = ""  # in figures, as #rrggbb; without one, the next that is free
    adapts: ClassVar[bool] = True  # False: predicts with the source model, so that there is nothing to share
    needs: ClassVar[tuple[Need, ...]] = ()  # of a model, with default parameters
    single_images: ClassVar[bool] = True  # False: where BatchNorm is, one image is too few, with default parameters
    short: ClassVar[bool] = False  # True: works on a model in float16 or bfloat16 too
    calibrated: ClassVar[bool] = True  # False: what it predicts are not the logits of a trained classifier
    waits: ClassVar[bool] = True  # False: predicts in its adapting pass; a download counts from the next batch on
    reviews: ClassVar[bool] = False  # True: looks at some batches once more (see `is_due`, `review`)
    learns: ClassVar[str] = ""  # what `fedctta pretrain` learns beforehand, and the parameter that names its file

    def __post_init__(self) -> None:
        """Refuse parameters outside the ranges that their types tell."""
        check_ranges(self)

    def init(self, network: Network) -> Client:
        """Return a client before its first batch, made from the source model."""
        raise TypeError(f"{type(self).__name__} must define init")

    @property
    def source_images(self) -> int:
        """How many clean, unlabelled images of the source `study` needs; 0 for none."""
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
    def descends(self) -> bool:
        """Whether it takes steps along gradients."""
        return "gradients" in self.needs

    @property
    def measures(self) -> bool:
        """Whether all that a client owns is measured on the current batch, without anything older."""
        return False

    @property
    def receives(self) -> bool:
        """Whether the client does something with a model it receives, besides predicting with it (see `receive`)."""
        return False

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Return the client after a download and before it predicts x[B, ...]. Pure; no labels."""
        return client

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K]: the model with the client's own tensors, statistics as stored."""
        return network(client.own, x).logits

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Return the client after x[B, ...], and its logits[B, K] of x: `adapt`, then `predict`.

        A method overrides it if its adapting pass computes these logits anyway, where no layer is called twice.
        """
        client = self.adapt(network, client, x)
        return client, self.predict(network, client, x)

    def is_due(self, client: Client) -> Tensor:
        """Return whether a client that has just adapted is to review its batch: a truth value. Pure."""
        raise TypeError(f"{type(self).__name__} reviews and must define is_due")

    def review(self, network: Network, client: Client, x: Tensor) -> Client:
        """Return the client after a second look at x[B, ...], which it has adapted to. Pure; no labels."""
        return client

    def without_reviews(self) -> Adapter:
        """Return the method as it is between reviews, to measure what its usual rounds cost."""
        return self

    def go_back(self, healthy: Client, now: Client) -> Client:
        """Return the client with which a device goes on that returns from `now` to an earlier state. Pure."""
        return healthy

    @property
    def sends_noise(self) -> float | None:
        """The noise on all that a client ever sends of one image, in sensitivities; None: there is none."""
        return None

    def with_noise(self, noise: float, min_images: int = 1) -> Adapter | None:
        """Return this method with such noise, on sums of so many images (1: as many as usual); None: it cannot."""
        return None

    def draw_chance(self, client: Client) -> Client:
        """Return a client with new chance from the operating system, before a batch on a real device."""
        return client

    def after_gap(self, client: Client) -> Client:
        """Return a client that was saved before its last batches, and goes on without them."""
        return client

    def predict_before(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits[B, K] of x by the model that the update on x starts from (`predict=before`). Pure; no labels.

        Called in place of `predict`, with the client as it is before `adapt`. A method overrides it if its update
        starts from another model than the client's, or if its `predict` reads what `adapt` has stored.
        """
        return self.predict(network, client, x)

    def predicts_alike(self, communicates: bool) -> bool:
        """Whether predictions before and after the update are the same; `communicates`: there is a server."""
        return False

    def reads(self, network: Network) -> tuple[Path, ...]:
        """Return the files, beside the model's weights, on which results depend: a run is not reused when they change.

        Called after `check`, so the files exist.
        """
        return ()

    def check(self, network: Network, batch: int) -> None:
        """Raise a UserError if this model or batch size cannot be adapted; by default, if the model lacks a need."""
        for need in self.needs:
            self.require(network, need)

    def check_images(self, network: Network, x: Tensor) -> None:
        """Raise a UserError if nothing of images like x[B, ...] could ever be sent."""

    def require(self, network: Network, need: Need, *remedies: str) -> None:
        """Refuse a model without what is needed; say which adapters can work on it, after `remedies` of one's own."""
        if not meets(network, [need]):
            raise UserError(refusal(self.name, need, remedies, usable(network)))


adapters: Registry[Adapter] = Registry("adapter", __name__)


def usable(network: Network, single: bool = False) -> list[str]:
    """Return the adapters that work on a model (on `single` images) by default, those that adapt nothing first."""
    able = {
        name: cls
        for name, cls in adapters.classes().items()
        if meets(network, cls.needs) and (cls.single_images or not single)
    }
    return sorted(able, key=lambda name: able[name].adapts)
