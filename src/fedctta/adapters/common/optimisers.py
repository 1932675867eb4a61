"""Optimisers as pure functions: (weights, gradient, memory) -> (weights, memory). The memory stays with the client."""

from __future__ import annotations

import torch

from fedctta.core.network import Tensors
from fedctta.core.tensors import named, under


def adam_memory(weights: Tensors) -> Tensors:
    """Return Adam's moments and step counter before the first step."""
    moments = {f"{m}.{n}": torch.zeros_like(t) for m in ("first", "second") for n, t in weights.items()}
    return {**moments, "step": torch.zeros((), device=next(iter(weights.values())).device)}


def adam(
    weights: Tensors, gradient: Tensors, memory: Tensors, lr: float, beta1: float = 0.9, beta2: float = 0.999
) -> tuple[Tensors, Tensors]:
    """Take one step of Adam."""
    step = memory["step"] + 1
    after, new = {"step": step}, {}
    for name, weight in weights.items():
        first = torch.lerp(gradient[name], memory[f"first.{name}"], beta1)
        second = torch.lerp(gradient[name].square(), memory[f"second.{name}"], beta2)
        after[f"first.{name}"], after[f"second.{name}"] = first, second
        scale = (second / (1 - beta2**step)).sqrt() + 1e-8
        new[name] = weight - lr * first / (1 - beta1**step) / scale
    return new, after


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
    return {name: torch.add(tensor, gradient[name], alpha=-lr) for name, tensor in weights.items()}
