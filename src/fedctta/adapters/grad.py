"""TTA-grad: one gradient step on all parameters for every batch.

The loss is the mean prediction entropy (FedCTTA Eq. 1-2), H(p) = - sum_k p_k log p_k, and the step is plain gradient
descent. `variant=code` is what the published code does instead: cross-entropy against the arg-max of the same logits,
and Adam with moments that live as long as the client. Either way the forward pass normalises with batch statistics,
the client keeps their running average, and prediction uses that average.

What federated methods add on the client side are parameters, to be combined at will with any aggregator:

    loss + prox * FedProx + moon * MOON + distil * pFedSD        (see `regularisers`)

and `finetune` more steps on the same batch after every download (FedAvg+FT). The published code records, for a
fine-tuned model, the accuracy of the training-mode forward pass; so does `variant=code` with `finetune`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.needs import Need
from fedctta.adapters.common.optimisers import adam, adam_memory, descend
from fedctta.adapters.common.regularisers import contrast, proximal, self_distillation
from fedctta.core.clients import Client
from fedctta.core.network import Network, Output, Tensors
from fedctta.core.norms import training
from fedctta.core.tensors import named, only, under
from fedctta.errors import UserError
from fedctta.ranges import CountOrZero, NotNegative, Positive


@dataclass(frozen=True)
class EntropyGradient(Adapter):
    """Minimise entropy by one step on all parameters (variant=code: pseudo-labels and Adam, as published)."""

    name: ClassVar[str] = "grad"
    needs: ClassVar[tuple[Need, ...]] = ("gradients",)
    single_images: ClassVar[bool] = False
    lr: NotNegative = 1e-5
    momentum: float = 0.1
    variant: Literal["paper", "code"] = "paper"
    prox: NotNegative = 0.0
    moon: NotNegative = 0.0
    moon_tau: Positive = 0.5
    distil: NotNegative = 0.0
    distil_tau: Positive = 1.0
    finetune: CountOrZero = 0

    def init(self, network: Network) -> Client:
        """Own every parameter and statistic; Adam's moments and models to compare with stay private."""
        parameters = network.parameters
        own = {**parameters, **network.statistics}
        private: Tensors = {}
        if self.variant == "code":
            private |= adam_memory(parameters)
        if self._compares_with_received:
            private |= named("received", own)
        if self._compares_with_previous:
            private |= named("previous", own)
        return Client(own, private)

    @property
    def _compares_with_received(self) -> bool:
        return bool(self.prox or self.moon)

    @property
    def _compares_with_previous(self) -> bool:
        return bool(self.moon or self.distil)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step down the loss and update the running statistics."""
        client = self._descend(network, client, x)
        if self._compares_with_previous:
            client = client._replace(private={**client.private, **named("previous", client.own)})
        return client

    @property
    def receives(self) -> bool:
        """Whether there is a model to remember, or fine-tuning to do."""
        return self._compares_with_received or self.finetune > 0

    def receive(self, network: Network, client: Client, x: Tensor) -> Client:
        """Remember the model, then fine-tune it."""
        if self._compares_with_received:
            client = client._replace(private={**client.private, **named("received", client.own)})
        for _ in range(self.finetune):
            client = self._descend(network, client, x)
        return client

    def predict(self, network: Network, client: Client, x: Tensor) -> Tensor:
        """Return logits with the running statistics; those of the batch for variant=code after fine-tuning."""
        if self.variant == "code" and self.finetune:
            return network(client.own, x, training(self.momentum)).logits
        return super().predict(network, client, x)

    def _descend(self, network: Network, client: Client, x: Tensor) -> Client:
        parameters = only(network.parameters, client.own)
        objective = mean_entropy if self.variant == "paper" else pseudo_label_loss
        penalty = self._penalty(network, client, x)

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**client.own, **weights}, x, training(self.momentum))
            return objective(output.logits) + penalty(weights, output), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(parameters)
        if self.variant == "paper":
            return client._replace(own={**descend(parameters, gradient, self.lr), **statistics})
        new, moments = adam(parameters, gradient, client.private, self.lr)
        return Client({**new, **statistics}, {**client.private, **moments})

    def _penalty(self, network: Network, client: Client, x: Tensor) -> Callable[[Tensors, Output], Tensor | float]:
        """Return the regularisers as a function of the weights and the output; models to compare with run once."""
        received, previous = under("received", client.private), under("previous", client.private)
        # As published: the received model predicts as deployed, MOON's former one normalises with the batch.
        z_received = network(received, x).features if self.moon else x
        z_previous = network(previous, x, training(self.momentum)).features if self.moon else x
        former = network(previous, x).logits if self.distil else x

        def penalty(weights: Tensors, output: Output) -> Tensor | float:
            total: Tensor | float = 0.0
            if self.prox:
                total = total + self.prox * proximal(weights, received)
            if self.moon:
                total = total + self.moon * contrast(output.features, z_received, z_previous, self.moon_tau)
            if self.distil:
                total = total + self.distil * self_distillation(output.logits, former, self.distil_tau)
            return total

        return penalty

    def check(self, network: Network, batch: int) -> None:
        """Training-mode BatchNorm needs more than one image."""
        super().check(network, batch)
        if network.norms and batch < 2:
            raise UserError("batch=1 gives no batch statistics for adapter 'grad': use batch=2 or more")


def mean_entropy(logits: Tensor) -> Tensor:
    """Mean over the batch of H(softmax(logits)) (Eq. 1-2)."""
    return entropy(logits).mean()


def pseudo_label_loss(logits: Tensor) -> Tensor:
    """Cross-entropy against the arg-max of the same logits."""
    return -F.log_softmax(logits, dim=-1).amax(-1).mean()
