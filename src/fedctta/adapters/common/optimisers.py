"""Optimisers as pure functions: (weights, gradient, memory) -> (weights, memory). The memory stays with the client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.adapters.common.fused_steps import adam_fused, can_fuse_steps
from fedctta.core.network import Tensors
from fedctta.core.tensors import each_element, named, under


def adam_memory(weights: Tensors) -> Tensors:
    """Return Adam's moments and step counter before the first step."""
    moments = {f"{m}.{n}": torch.zeros_like(t) for m in ("first", "second") for n, t in weights.items()}
    return {**moments, "step": torch.zeros((), device=next(iter(weights.values())).device)}


def adam(
    weights: Tensors, gradient: Tensors, memory: Tensors, lr: float, beta1: float = 0.9, beta2: float = 0.999
) -> tuple[Tensors, Tensors]:
    """Take one step of Adam."""
    step = memory["step"] + 1
    scale1, scale2 = 1 - beta1**step, 1 - beta2**step

    def move(weight: Tensor, slope: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if can_fuse_steps(weight, slope, first, second):
            rates = (lr, 1 - beta1, 1 - beta2)
            return adam_fused((weight, slope, first, second), (scale1, scale2), rates)
        first, second = torch.lerp(slope, first, beta1), torch.lerp(slope.square(), second, beta2)
        return weight - lr * first / scale1 / ((second / scale2).sqrt() + 1e-8), first, second

    moments = (under(kind, memory) for kind in ("first", "second"))
    new, first, second = each_element(move, weights, gradient, *moments)
    return new, {"step": step, **named("first", first), **named("second", second)}


def momentum_memory(weights: Tensors) -> Tensors:
    """Return the velocity before the first step of `momentum`."""
    return named("velocity", {name: torch.zeros_like(tensor) for name, tensor in weights.items()})


def momentum(
    weights: Tensors, gradient: Tensors, memory: Tensors, lr: float, beta: float = 0.9
) -> tuple[Tensors, Tensors]:
    """Take one step of gradient descent with momentum: v <- beta v + g, theta <- theta - lr v."""
    velocity = {name: beta * v + gradient[name] for name, v in under("velocity", memory).items()}
    return descend(weights, velocity, lr), named("velocity", velocity)


def descend(weights: Tensors, gradient: Tensors, lr: float) -> Tensors:
    """Take one plain step down the gradient."""
    return each_element(lambda weight, slope: (torch.add(weight, slope, alpha=-lr),), weights, gradient)[0]
