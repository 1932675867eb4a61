"""SHOT-IM: sharpen single predictions and spread them over classes, with the classifier fixed.

    loss = mean_b H(p_b) + sum_k pbar_k log(pbar_k + eps),    pbar = mean_b p_b

The second term, the negative entropy of the mean prediction, keeps the first from putting everything into one class.
All parameters but the classifier's are trained by Adam; BatchNorm keeps running statistics, as in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters import Adapter
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory
from fedctta.adapters.tent import require_batch
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import training
from fedctta.core.tensors import only
from fedctta.ranges import NotNegative, Share


@dataclass(frozen=True)
class SHOT(Adapter):
    """Maximise information: certain predictions, spread over classes; the classifier stays."""

    name: ClassVar[str] = "shot"
    needs: ClassVar[tuple[Need, ...]] = ("features", "gradients")
    single_images: ClassVar[bool] = False
    lr: NotNegative = 1e-5
    momentum: Share = 0.1

    def init(self, network: Network) -> Client:
        """Own everything but the classifier."""
        parameters = only(network.extractor, network.state)
        return Client({**parameters, **network.statistics}, adam_memory(parameters))

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step and update the running statistics."""
        parameters = only(network.extractor, client.own)

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**client.own, **weights}, x, training(self.momentum))
            return information_loss(output.logits), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(parameters)
        new, memory = adam(parameters, gradient, client.private, self.lr)
        return Client({**new, **statistics}, memory)

    def check(self, network: Network, batch: int) -> None:
        """There must be a classifier to keep, and BatchNorm needs more than one image."""
        super().check(network, batch)
        require_batch(self.name, network, batch)


def information_loss(logits: Tensor, eps: float = 1e-5) -> Tensor:
    """Mean entropy less the entropy of the mean prediction."""
    mean = logits.softmax(-1).mean(0)
    return entropy(logits).mean() + (mean * torch.log(mean + eps)).sum()
