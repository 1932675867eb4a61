"""What federated methods add to a client's loss: pure functions of outputs and tensors.

All three hold a client back: at the model it received (FedProx), towards that model's features and away from its own
former ones (MOON), at its own former predictions (pFedSD).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.network import Tensors


def proximal(weights: Tensors, received: Tensors) -> Tensor:
    """FedProx: 1/2 || theta - theta_received ||^2 over all parameters.

    Its gradient theta - theta_received is zero at the received model, so with one step between two downloads it
    changes nothing.
    """
    return 0.5 * torch.stack([(weight - received[name]).square().sum() for name, weight in weights.items()]).sum()


def contrast(features: Tensor, received: Tensor, previous: Tensor, tau: float) -> Tensor:
    """MOON: - log( exp(cos(z, z_received) / tau) / (exp(cos(z, z_received) / tau) + exp(cos(z, z_previous) / tau)) ).

    z[B, D] are the features of the batch by the model in training, the received one and the client's last one.
    """
    to_received = F.cosine_similarity(features, received, dim=-1)
    to_previous = F.cosine_similarity(features, previous, dim=-1)
    return F.softplus((to_previous - to_received) / tau).mean()


def self_distillation(logits: Tensor, previous: Tensor, tau: float) -> Tensor:
    """pFedSD: tau^2 KL( softmax(previous / tau) || softmax(logits / tau) ), the mean over the batch."""
    teacher, student = F.log_softmax(previous / tau, dim=-1), F.log_softmax(logits / tau, dim=-1)
    return tau**2 * (teacher.exp() * (teacher - student)).sum(-1).mean()
