"""Learning by domain: a method that trains scales and shifts, or all weights, which are remembered for every domain.

In domain k the model is the source plus d_k, and a batch moves d_k by one step of the method's optimiser:

    theta = source + sum_k b(k) d_k        s = step(theta, x)        d_k <- d_k + b(k) s

The optimiser's memory and the method's notes belong to the device, not to a domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedctta.adapters.common.optimisers import adam, adam_memory, momentum
from fedctta.adapters.eata import EATA, ETA
from fedctta.adapters.sar import SAR
from fedctta.adapters.tent import AffineAdapter, Tent
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule
from fedctta.core.tensors import choose, lay_out, named, only, take_apart, under

Inner = Literal["none", "tent", "eata", "eta", "sar"]
METHODS: dict[str, AffineAdapter] = {"tent": Tent(), "eata": EATA(), "eta": ETA(), "sar": SAR()}
PREFIX = "inner"
WHOLE = ("tent", "eta")
"""Those that can train all weights: SAR leaves layers out, and EATA's anchor is of scales and shifts."""


@dataclass(frozen=True)
class Learner:
    """One of these methods, with a learning rate; `everything`: it trains all weights."""

    method: AffineAdapter
    lr: float
    everything: bool = False

    def weights(self, network: Network) -> Tensors:
        """Return the weights of the source that it trains."""
        return only(network.parameters, network.state) if self.everything else self.method.init(network).own

    def start(self, network: Network) -> Tensors:
        """Return what a device keeps privately before its first batch."""
        if not self.everything:
            return named(PREFIX, self.method.init(network).private)
        return named(PREFIX, adam_memory(self.weights(network)) | self.method.notes(network))

    def study(self, network: Network, images: Tensor, batch: int) -> Tensors:
        """Return what the method learns from images of the source."""
        return named(PREFIX, self.method.study(network, images, batch))

    def apply(self, network: Network, moved: Tensor) -> Tensors:
        """Return the weights that are `moved`[P] away from the source's."""
        source = self.weights(network)
        return take_apart(lay_out(source) + moved, source)

    def step(
        self, network: Network, moved: Tensor, private: Tensors, x: Tensor, rule: NormRule
    ) -> tuple[Tensor, Tensors]:
        """Return the step[P] that a batch asks for, and the private tensors after it."""
        own, memory = self.apply(network, moved), under(PREFIX, private)
        slope = self.method.slope(network, Client(own, memory), x, rule)
        optimise = momentum if isinstance(self.method, SAR) else adam
        new, after = optimise(own, slope.gradient, memory, self.lr)
        memory = memory | choose(slope.some, after, only(after, memory)) | slope.notes
        step = torch.where(slope.some, lay_out(new) - lay_out(own), 0)
        if slope.collapsed is not None:
            step = torch.where(slope.collapsed, -moved, step)
            fresh = self.method.init(network).private
            memory = memory | choose(slope.collapsed, fresh, only(fresh, memory))
        return step, private | named(PREFIX, memory)
