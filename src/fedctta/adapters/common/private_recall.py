"""Recall with noise on all that is sent: predictions as before, and a second, noisy book for the server.

Every batch passes the model once more, each image by itself (`books.noisy_book`, which states and proves what is
guaranteed). What the server sends joins the device's exact book as before; its domains are found there by their looks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters.recall import Recall
from fedctta.books.noisy_book import HANDED, PIXELS, PREFIX, NoisyBook, match, measure
from fedctta.books.rows import read_scale
from fedctta.core.appearance import appearance
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.system_randomness import draw_normal
from fedctta.core.tensors import named, under
from fedctta.errors import UserError

MIN_IMAGES = 500  # in a released sum, where no number is asked for


@dataclass(frozen=True)
class PrivateRecall(Recall):
    """Recall whose uploads are noisy; `noise` is in sensitivities of all that is ever sent of one image."""

    pictures: ClassVar[bool] = True  # the proof bounds what one of them looks like
    noise: float = 1.0
    min_images: int = MIN_IMAGES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner != "none":
            raise UserError(
                f"noise and epsilon do not cover what {self.name}.inner={self.inner} learns: drop them, or that"
            )

    @property
    def sends_noise(self) -> float:
        """The noise."""
        return self.noise

    @property
    def noisy(self) -> NoisyBook:
        """What is shared."""
        return NoisyBook(self.notebook, self.noise, self.min_images)

    def init(self, network: Network) -> Client:
        """Begin with two empty books."""
        client = super().init(network)
        shared = self.noisy.start(self._layout(network), network.device)
        return client._replace(private=client.private | shared)

    def check_images(self, network: Network, x: Tensor) -> None:
        """Refuse images so small that no layer of the model says enough of one of them to be sent."""
        if not bool(measure(network, read_scale(network), x[:1]).which.any()):
            size = " x ".join(map(str, x.shape[2:]))
            raise UserError(
                f"noise and epsilon need a BatchNorm layer with {PIXELS} pixels per image or more, and there is none on"
                f" images of {size}: nothing would ever be sent; drop them, or use larger images"
            )

    def adapt_and_predict(self, network: Network, client: Client, x: Tensor) -> tuple[Client, Tensor]:
        """Predict and add as `recall` does; then measure every image by itself, for the noisy book."""
        client, logits = super().adapt_and_predict(network, client, x)
        layout, measured = self._layout(network), measure(network, read_scale(network), x)
        return client._replace(private=self.noisy.add(layout, client.private, appearance(x), measured)), logits

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Recognise and predict; nothing is added."""
        return super().adapt_and_predict(network, client, x)[1]

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Let both books take up what the server sent.

        Places in the exact book follow from exact looks. They are not kept: the noisy book must never read them.
        """
        layout, private = self._layout(network), self.noisy.receive(client.private)
        sent = {name: private[name] for name in HANDED}
        after = super().receive(network, client._replace(private=match(self.notebook, layout, private)), x)
        return after._replace(private=after.private | sent)

    def go_back(self, healthy: Client, now: Client) -> Client:
        """Go back to an earlier exact book, and never with what is shared: what was released must not be again."""
        client = super().go_back(healthy, now)
        return client._replace(private=client.private | named(PREFIX, under(PREFIX, now.private)))

    def draw_chance(self, client: Client) -> Client:
        """Bring new chance from the operating system, for one batch."""
        fresh = client.private[f"{PREFIX}.fresh"]
        chance = draw_normal(fresh.numel()).to(fresh)
        given = torch.ones_like(client.private[f"{PREFIX}.given"])
        return client._replace(private=client.private | named(PREFIX, {"fresh": chance, "given": given}))

    def after_gap(self, client: Client) -> Client:
        """Forget what waits: after a gap nobody knows whether it was released."""
        return client._replace(private=forget_waiting(client.private))


def add_noise(recall: Recall, noise: float, min_images: int) -> PrivateRecall:
    """Return `recall` with noise; `min_images` of 1 are as many as usual."""
    own = {each.name: getattr(recall, each.name) for each in fields(Recall)}
    return PrivateRecall(**own, noise=noise, min_images=min_images if min_images > 1 else MIN_IMAGES)


def forget_waiting(private: Tensors) -> Tensors:
    """Return the private tensors with nothing that waits to be released."""
    mine = under(PREFIX, private)
    rows, width = mine["part"], mine["book"].shape[1]
    empty = {name: torch.zeros_like(mine[name]) for name in ("images", "look", "moments")}
    part = torch.cat([rows[:, :width], torch.zeros_like(rows[:, width:])], 1)
    return private | named(PREFIX, empty | {"part": part})
