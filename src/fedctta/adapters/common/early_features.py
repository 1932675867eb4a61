"""What a batch looks like early in the model: mean and variance of the input of the first normalisation layer.

The source model computes them; nothing that a client learns lies before that layer, so they tell domains apart and not
clients. The pass ends there. A vision transformer's are those of its embedded patches, its class token among them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedctta.core.moments import moments
from fedctta.core.network import Network
from fedctta.core.norms import Statistics
from fedctta.errors import UserError

LEAST_VARIANCE = 1e-8  # channels that never change have none, and would be infinitely far from all others


class _Reached(Exception):
    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def count_channels(network: Network) -> int:
    """Return how many channels the first normalisation layer has."""
    return network.state[network.affine[0]].shape[-1]


def early_statistics(network: Network, x: Tensor) -> Statistics:
    """Return mean and unbiased variance of every channel of x[B, ...] before the first normalisation layer."""
    name = network.affine[0].rpartition(".")[0]
    layer = network.module.get_submodule(name)

    def stop(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs[0])

    handle = layer.register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            network({}, x)
    except _Reached as reached:
        features = reached.features
    else:
        raise UserError(
            f"layer {name!r} is not called when the model predicts, and domains are told apart by its input"
        )
    finally:
        handle.remove()
    channel = _channel_axis(layer, features, count_channels(network))
    over = tuple(axis for axis in range(features.dim()) if axis != channel)
    mean, var = moments(features, over)
    count = features.numel() // len(mean)
    return Statistics(mean, (var * (count / max(count - 1, 1))).clamp_min(LEAST_VARIANCE))


def _channel_axis(layer: nn.Module, features: Tensor, channels: int) -> int:
    """Channels come last where LayerNorm normalises them, and second everywhere else."""
    last = features.shape[-1] == channels and isinstance(layer, (nn.LayerNorm, nn.RMSNorm))
    return features.dim() - 1 if last or features.shape[1] != channels else 1


def distance(one: Statistics, other: Statistics) -> Tensor:
    """D(a, b) = mean_c (v_a + (m_a - m_b)^2) / (2 v_b) + (v_b + (m_a - m_b)^2) / (2 v_a) - 1, c over channels.

    It is the divergence of Kullback and Leibler between Gaussians, in both directions.
    """
    square = (one.mean - other.mean).square()
    there = (one.var + square) / (2 * other.var)
    back = (other.var + square) / (2 * one.var)
    return (there + back - 1).mean(-1)
