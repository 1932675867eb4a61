"""UGSA: the server keeps one model and lets uploads move it, the less the more unsure they are (BPFedCTTA's server).

With theta_G the server's model (at first the source model) and sigma_k what client k says of its own uncertainty (see
`uncertainty`), for the A uploads there are in a round:

    gate=exp        w_k = t_k exp(-beta sigma_k)        theta_G <- theta_G + gamma (1/A) sum_k w_k (theta_k - theta_G)
    gate=softmax    w_k = t_k softmax(-beta sigma)_k    theta_G <- theta_G + gamma sum_k w_k (theta_k - theta_G)

t_k is 1, or less if the upload is late. Everyone present receives theta_G, and so does who joins, before it adapts. The
paper writes a softmax for clients that come one at a time, for which it is always 1; hence exp, which comes to the
paper's theta_G + gamma w_k (theta_k - theta_G) for a single upload. beta=0 opens the gate, and with gamma=1 that is
FedAvg with a server that remembers.

As a collaboration, W_ik = w_k / sum_j w_j for all i, and theta_G moves towards sum_k W_ik theta_k at the rate gamma
(1/A) sum_k w_k (softmax: gamma sum_k w_k). A rate above 1, for which sigma must be negative, counts as 1. An upload
whose sigma is no finite number does not count.

`normalise` lets one beta fit all: sigma is divided by ln K (classes), or becomes max(0, 1 + (sigma - m) / s) with m and
s the mean and spread of all sigmas so far (running). auto is classes for entropies, running for energies, and none for
consistency. This is ours: the paper puts the entropy itself into the gate, which is `ugsa.normalise=none`. By default
beta = 0.2 therefore counts as 0.2 / ln K: 0.087 for 10 classes, 0.043 for 100.

What the paper derives and this does not have: a covariance. There the server holds a Gaussian N(theta_G, Sigma_G) and a
client sends N(theta_k, Sigma_k); their mean in the space of densities, p_G^(1 - w) p_k^w, and the Bayesian filter over
clients that follows from it, weigh every parameter by both precisions. The update the paper then states, and this
follows, moves means only, at one rate for all parameters.

A client sends P + 1 floats and receives P; the server keeps P (and 3 more with normalise=running).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedctta.aggregators import Server, Uploads
from fedctta.aggregators.common.server_model import ServerModel
from fedctta.aggregators.common.uncertainty import Measure, running, running_start, uncertainty
from fedctta.aggregators.common.vectors import for_active
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError
from fedctta.ranges import NotNegative, Share

Scale = Literal["none", "classes", "running"]
_AUTO: dict[Measure, Scale] = {
    "entropy": "classes",
    "energy": "running",
    "consistency": "none",
    "dropout": "classes",
    "ensemble": "classes",
}
_HIGHEST = 50.0  # a score whose exponential is far beyond any rate, and still a number


@dataclass(frozen=True)
class UGSA(ServerModel):
    """Keep one model that uploads move; an upload that is less certain of its batch moves it less."""

    name: ClassVar[str] = "ugsa"
    pictures: ClassVar[bool] = True
    title: ClassVar[str] = "UGSA"
    uncertainty: Measure = "entropy"
    beta: NotNegative = 0.2
    gamma: Share = 0.5
    gate: Literal["exp", "softmax"] = "exp"
    normalise: Literal["auto", "none", "classes", "running"] = "auto"

    @property
    def scale(self) -> Scale:
        """How sigma is normalised."""
        return _AUTO[self.uncertainty] if self.normalise == "auto" else self.normalise

    def check(self, network: Network, own: Tensors) -> None:
        """Dropout needs features to drop."""
        if self.uncertainty == "dropout" and not network.has_features:
            raise UserError(
                "ugsa.uncertainty=dropout needs a model that ends in nn.Linear: use ugsa.uncertainty=ensemble"
            )

    def init(self, server: Server) -> Tensors:
        """Know no sigmas; the model joins when it is known what clients own."""
        return running_start(server.network.device) if self.scale == "running" else {}

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Say how unsure the model to be sent is: one float."""
        sigma, classes = uncertainty(self.uncertainty, network, client.own, x)
        return {"uncertainty": sigma / log(max(classes, 2)) if self.scale == "classes" else sigma}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Weigh the uploads and move the server's model."""
        sigma, count = uploads.signals["uncertainty"], len(uploads.active)
        trust = uploads.active.to(sigma.dtype) if uploads.trust is None else uploads.trust
        trust = torch.where(sigma.isfinite(), trust, 0)
        memory = dict(memory)
        if self.scale == "running":
            sigma, seen = running(sigma, trust, memory)
            memory |= seen
        share, rate = self.weigh(sigma, trust)
        mixture = trust * share
        mixture = mixture / mixture.sum().clamp_min(torch.finfo(mixture.dtype).tiny)
        for name, tensor in uploads.own.items():
            g = memory.get(f"global.{name}", server.network.state[name].contiguous())
            rows = for_active(trust > 0, tensor, torch.zeros_like(tensor))  # 0 times what is no number is none either
            there = (mixture @ rows.reshape(count, -1)).view_as(g)
            memory[f"global.{name}"] = torch.lerp(g, torch.where(there.isfinite(), there, g), rate)
        return share.expand(count, count), memory  # without trust, which the engine brings in

    def weigh(self, sigma: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
        """Return the softmax of -beta sigma[N] over uploads with trust[N] (uniform if there is none), and the rate."""
        present = trust > 0
        scores = torch.where(present, -self.beta * sigma, -torch.inf)
        share = torch.where(present.any(), scores, 0).softmax(0)
        if self.gate == "exp":
            rate = (trust * scores.clamp_max(_HIGHEST).exp()).sum() / present.sum().clamp_min(1)
        else:
            rate = (trust * share).sum()
        return share, (self.gamma * rate).clamp_max(1)
