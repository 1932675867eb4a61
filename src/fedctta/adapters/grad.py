"""TTA-grad: one gradient step on all parameters for every batch.

The loss is the mean prediction entropy (FedCTTA Eq. 1-2), H(p) = - sum_k p_k log p_k, and the step is plain gradient
descent. `variant=code` is what the published code does instead: cross-entropy against the arg-max of the same logits,
and Adam with moments that live as long as the client. Either way the forward pass normalises with batch statistics,
the client keeps their running average, and prediction uses that average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.adapters import Adapter
from fedctta.clients import Client
from fedctta.errors import UserError
from fedctta.network import Network, Tensors, training


@dataclass(frozen=True)
class EntropyGradient(Adapter):
    """Minimise entropy by one step on all parameters (variant=code: pseudo-labels and Adam, as published)."""

    name: ClassVar[str] = "grad"
    lr: float = 1e-5
    momentum: float = 0.1
    variant: Literal["paper", "code"] = "paper"

    def init(self, network: Network) -> Client:
        """Own every parameter and statistic; Adam's moments stay private."""
        parameters = network.parameters
        private: Tensors = {}
        if self.variant == "code":
            private = {f"{m}.{n}": torch.zeros_like(t) for m in ("first", "second") for n, t in parameters.items()}
            private["step"] = torch.zeros((), device=network.device)
        return Client(own={**parameters, **network.statistics}, private=private)

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Take one step down the loss and update the running statistics."""
        parameters = {name: client.own[name] for name in network.parameters}
        objective = mean_entropy if self.variant == "paper" else pseudo_label_loss

        def loss(weights: Tensors) -> tuple[Tensor, Tensors]:
            output = network({**client.own, **weights}, x, training(self.momentum))
            return objective(output.logits), output.statistics

        gradient, statistics = torch.func.grad(loss, has_aux=True)(parameters)
        if self.variant == "paper":
            new = {name: torch.add(tensor, gradient[name], alpha=-self.lr) for name, tensor in parameters.items()}
            return client._replace(own={**new, **statistics})
        new, private = adam(parameters, gradient, client.private, self.lr)
        return Client({**new, **statistics}, private)

    def check(self, network: Network, batch: int) -> None:
        """Training-mode BatchNorm needs more than one image."""
        if network.norms and batch < 2:
            raise UserError("batch=1 gives no batch statistics for adapter 'grad': use batch=2 or more")


def mean_entropy(logits: Tensor) -> Tensor:
    """Mean over the batch of H(softmax(logits)) (Eq. 1-2)."""
    log_p = F.log_softmax(logits, dim=-1)
    return -(log_p.exp() * log_p).sum(-1).mean()


def pseudo_label_loss(logits: Tensor) -> Tensor:
    """Cross-entropy against the arg-max of the same logits."""
    return -F.log_softmax(logits, dim=-1).amax(-1).mean()


def adam(
    weights: Tensors, gradient: Tensors, moments: Tensors, lr: float, beta1: float = 0.9, beta2: float = 0.999
) -> tuple[Tensors, Tensors]:
    """One Adam step as a pure function of weights and moments."""
    step = moments["step"] + 1
    private, new = {"step": step}, {}
    for name, weight in weights.items():
        first = torch.lerp(gradient[name], moments[f"first.{name}"], beta1)
        second = torch.lerp(gradient[name].square(), moments[f"second.{name}"], beta2)
        private[f"first.{name}"], private[f"second.{name}"] = first, second
        scale = (second / (1 - beta2**step)).sqrt() + 1e-8
        new[name] = weight - lr * first / (1 - beta1**step) / scale
    return new, private
