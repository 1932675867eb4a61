"""SAR: entropy minimisation that looks for flat minima and starts over when predictions collapse.

    g  = gradient of the mean entropy over images with H < E0 = 0.4 ln K
    g' = the same gradient at w + rho g / ||g||, over images that pass there as well
    w <- momentum step along g'
    e <- 0.9 e + 0.1 (mean entropy at the second place);  e < 0.2: back to the source

Scales and shifts of normalisation layers are trained, except those of the last stage (`skip=auto`): what a model names
as its `last_stage`, as all models of this package do; or by name, as in the published code, `layer4` of a ResNet, or a
vision transformer's last quarter of `blocks` (9 to 11 of 12) and its final `norm`. A model that has none of these is
trained whole, and so is any with `skip=none`; other values of `skip` leave out all names in which they occur.

A batch in which no image passes changes nothing, the velocity of the momentum step included. The published code steps
on along the decayed velocity then, since the mean over no image has the gradient zero. Recovery sets the velocity and e
back too. The published code keeps the velocity: it reloads the state of SAM, and the velocity is in that of the SGD
below it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.adapters.common.losses import entropy
from fedctta.adapters.common.optimisers import momentum, momentum_memory
from fedctta.adapters.tent import AffineAdapter, Slope, trained
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, refreshed
from fedctta.core.tensors import choose, masked_mean, only
from fedctta.errors import UserError
from fedctta.ranges import NotNegative


@dataclass(frozen=True)
class SAR(AffineAdapter):
    """Minimise the entropy of reliable images where it is flat (SAM); recover from collapse."""

    name: ClassVar[str] = "sar"
    lr: NotNegative = 1e-3
    threshold: NotNegative = 0.4  # of ln K
    rho: NotNegative = 0.05
    recover: NotNegative = 0.2
    skip: str = "auto"  # none, or a part of names

    def init(self, network: Network) -> Client:
        """Own scales and shifts; velocity and the running entropy stay private."""
        left_out = self._left_out(network)
        own = only([name for name in network.affine if name not in left_out], network.state)
        return Client(own, {**momentum_memory(own), **self.notes(network)})

    def notes(self, network: Network) -> Tensors:
        """Return the running entropy and whether there is one."""
        return {"entropy": torch.zeros((), device=network.device), "met": torch.zeros((), device=network.device)}

    def adapt(self, network: Network, client: Client, x: Tensor) -> Client:
        """Step along the gradient of a place uphill; start over where the entropy says so."""
        slope = self.slope(network, client, x, refreshed())
        own, velocity = momentum(client.own, slope.gradient, client.private, self.lr)
        own, velocity = choose(slope.some, own, client.own), choose(slope.some, velocity, client.private)
        assert slope.collapsed is not None
        fresh, private = self.init(network), {**velocity, **slope.notes}
        return Client(choose(slope.collapsed, fresh.own, own), choose(slope.collapsed, fresh.private, private))

    def slope(self, network: Network, client: Client, x: Tensor, rule: NormRule) -> Slope:
        """Return the gradient uphill, and whether the entropy has collapsed; without a reliable image, no step."""
        here = trained(network, client)

        def loss(weights: Tensors, among: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensors]]:
            output = network({**client.own, **weights}, x, rule)
            h = entropy(output.logits)
            passed = among * (h.detach() < self.threshold * math.log(output.logits.shape[-1])).to(h.dtype)
            value = masked_mean(h, passed)
            return value, (passed, value.detach(), output.statistics)

        find = torch.func.grad(loss, has_aux=True)
        first, (passed, _, statistics) = find(here, next(iter(here.values())).new_ones(()))
        norm = torch.stack([g.square().sum() for g in first.values()]).sum().sqrt().clamp_min(1e-12)
        uphill = {name: w + self.rho * first[name] / norm for name, w in here.items()}
        second, (passed, value, _) = find(uphill, passed)

        some = passed.sum() > 0
        running, met = client.private["entropy"], client.private["met"]
        new = torch.where(met > 0, torch.lerp(running, value, 0.1), value)
        running, met = torch.where(some, new, running), torch.where(some, 1.0, met)
        collapsed = (met > 0) & (running < self.recover)
        return Slope(second, {"entropy": running, "met": met}, some, collapsed, statistics)

    def check(self, network: Network, batch: int) -> None:
        """As Tent; `skip` must leave out something, if it is given, and leave something to train."""
        super().check(network, batch)
        left_out = self._left_out(network)
        if len(left_out) == len(network.affine):
            raise UserError(f"sar.skip={self.skip} leaves out every normalisation layer: give another name, or none")
        if not left_out and self.skip not in ("auto", "none"):
            raise UserError(f"sar.skip={self.skip} is in no name of a normalisation layer: give another name, or none")

    def _left_out(self, network: Network) -> set[str]:
        if self.skip == "auto":
            return last_stage(network)
        return {name for name in network.affine if self.skip in name} if self.skip != "none" else set()


def last_stage(network: Network) -> set[str]:
    """Return the names of the last stage's scales and shifts, as far as names tell."""
    if network.last_stage:
        return {name for name in network.affine if name.startswith(network.last_stage)}
    found = {name for name in network.affine if "layer4" in name}
    blocks = {name: match for name in network.affine if (match := _BLOCK.match(name))}
    count = 1 + max((int(match["number"]) for match in blocks.values()), default=0)
    if count > 1:
        found |= {name for name, match in blocks.items() if int(match["number"]) >= count - max(1, count // 4)}
        final = tuple(f"{match['prefix']}norm." for match in blocks.values())
        found |= {name for name in network.affine if name.startswith(final)}
    return found


_BLOCK = re.compile(r"(?P<prefix>(\w+\.)?)blocks\.(?P<number>\d+)\.")
