"""FedCTTA: clients whose models answer the same noise alike average more with each other.

With a probe of M inputs z_k, the same for every client, and theta_i the model client i has just adapted:

    mu_i = (1/M) sum_k f_{theta_i}(z_k)             the indicator, mean logits       (Eq. 6)
    D_ij = - || mu_i - mu_j ||_2                                                      (Eq. 5)
    W_ij = exp(D_ij / T) / sum_k exp(D_ik / T)       T = 1 in the paper               (Eq. 7)

Table IV compares other choices, each a parameter here: `compare` features or probabilities instead of logits; `probe`
with public images, or with the client's own batch through the source model (`batch`, what the published code calls
"original"); as `metric` the negative KL divergence KL(p_i || p_j) or cross-entropy -sum p_i log p_j of p =
softmax(mu), or the cosine of mu. `squash` takes exp(D) before the softmax, as the published code does for those
three.

Where paper and published code differ, measurements chose (docs/fedctta.md). The code smooths the indicator over rounds,

    mu_i <- a mu_i + (1 - a) mean output            a = `ema`, 0.9 there

which the paper does not mention: without it even clients of one domain lie far apart and W is nearly I.
It is the default here, and costs the server N K numbers of memory; `ema=0` is the paper's text. The code also draws
other noise for every client and round (`redraw=client`) and, with TTA-bn, probes the model a client received in the
round before (`statistics=received`), which makes the uniform matrix a fixed point; neither is the default. It uses
`samples=64`; 16 give the same accuracy in less than half the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Server, Uploads, mix
from fedctta.clients import Client
from fedctta.errors import UserError
from fedctta.network import Network, Output, Tensors


@dataclass(frozen=True)
class FedCTTA(Aggregator):
    """Weight peers by how alike their models answer shared noise (softmax of negative distance)."""

    name: ClassVar[str] = "fedctta"
    compare: Literal["logits", "probabilities", "features"] = "logits"
    metric: Literal["euclid", "kl", "ce", "cosine"] = "euclid"
    temperature: float = 1.0
    probe: Literal["noise", "images", "batch"] = "noise"
    samples: int = 16
    redraw: Literal["never", "round", "client"] = "never"
    statistics: Literal["adapted", "received"] = "adapted"
    ema: float = 0.9
    squash: bool = False

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"fedctta.temperature={self.temperature} must be above 0")
        if self.samples < 1:
            raise UserError(f"fedctta.samples={self.samples} must be at least 1")
        if not 0 <= self.ema < 1:
            raise UserError(f"fedctta.ema={self.ema} must be at least 0 and below 1")

    def init(self, server: Server) -> Tensors:
        """Remember nothing, unless smoothing or the received models were asked for."""
        if self.compare == "features" and not server.network.has_features:
            raise UserError("fedctta.compare=features needs a model that ends in nn.Linear: use fedctta.compare=logits")
        memory: Tensors = {}
        if self.redraw != "never" or self.ema:
            memory["round"] = torch.zeros((), dtype=torch.int64)
        if self.probe == "images":
            memory["probe"] = server.images(self.samples)
        elif self.probe == "noise" and self.redraw == "never":
            memory["probe"] = noise(server, self.samples)
        return memory

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """With probe=batch: the source model's mean output on the client's batch."""
        return {"indicator": self.indicator(network({}, x))} if self.probe == "batch" else {}

    def indicator(self, output: Output) -> Tensor:
        """mu: the mean output over the probe (Eq. 6)."""
        if self.compare == "features":
            return output.features.flatten(1).mean(0)
        logits = output.logits if self.compare == "logits" else output.logits.softmax(-1)
        return logits.mean(0)

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Probe every model, compare the answers, turn distances into weights."""
        memory = dict(memory)
        mu = uploads.signals.get("indicator")
        if mu is None:
            mu = self._probe(server, uploads, memory)
        if self.ema:
            new = ~memory.get("known", torch.zeros_like(uploads.active))
            smooth = torch.where(new[:, None], mu, torch.lerp(mu, memory.get("indicator", mu), self.ema))
            mu = torch.where(uploads.active[:, None], smooth, memory.get("indicator", mu))
            memory |= {"indicator": mu, "known": ~new | uploads.active}
        if "round" in memory:
            memory["round"] = memory["round"] + 1
        scores = mu.log() if self.compare == "probabilities" and self.metric in ("kl", "ce") else mu
        weights = collaboration(scores, self.metric, self.temperature, self.squash)
        if self.statistics == "received":
            memory |= {f"received.{name}": tensor for name, tensor in mix(weights, uploads.own).items()}
        return weights, memory

    def _probe(self, server: Server, uploads: Uploads, memory: Tensors) -> Tensor:
        """Indicators[N, K] of all models on the same probe (on one each with redraw=client)."""
        network, own = server.network, uploads.own
        if self.statistics == "received":
            own = {n: memory.get(f"received.{n}", network.state[n].expand_as(t)) for n, t in own.items()}
        if not own:  # nothing is adapted: all models are the source model
            return torch.zeros(len(uploads.active), 1, device=uploads.active.device)
        if self.redraw == "client":
            z = noise(server, len(uploads.active) * self.samples, int(memory["round"]))
            z = z.reshape(-1, self.samples, *server.shape)
            answers: Tensor = server.lift(lambda o, z: self.indicator(network(o, z)))(own, z)
            return answers
        z = memory["probe"] if "probe" in memory else noise(server, self.samples, int(memory["round"]))
        answers = server.lift(lambda o: self.indicator(network(o, z)))(own)
        return answers


def noise(server: Server, samples: int, round_: int = 0) -> Tensor:
    """Uniform noise in [0, 1] shaped like the network's input; the same on every device for a seed and round."""
    generator = torch.Generator().manual_seed(server.seed * 1_000_003 + round_)
    z = torch.rand(samples, *server.shape, generator=generator)
    return z.to(server.network.device, memory_format=torch.channels_last)


def collaboration(mu: Tensor, metric: str, temperature: float, squash: bool = False) -> Tensor:
    """W: row softmax of the similarity of indicators mu[N, K] over the temperature (Eq. 5 and 7)."""
    similarity = _SIMILARITY[metric](mu)
    return F.softmax((similarity.exp() if squash else similarity) / temperature, dim=1)


def _euclid(mu: Tensor) -> Tensor:
    # By differences: exact zeros on the diagonal, which the matrix-product shortcut does not give.
    return -torch.cdist(mu, mu, compute_mode="donot_use_mm_for_euclid_dist")


def _kl(mu: Tensor) -> Tensor:
    log_p = F.log_softmax(mu, dim=1)
    return _cross_entropy(mu) - (log_p.exp() * log_p).sum(1, keepdim=True)


def _cross_entropy(mu: Tensor) -> Tensor:
    log_p = F.log_softmax(mu, dim=1)
    return log_p.exp() @ log_p.T


def _cosine(mu: Tensor) -> Tensor:
    unit = F.normalize(mu, dim=1)
    return unit @ unit.T


_SIMILARITY = {"euclid": _euclid, "kl": _kl, "ce": _cross_entropy, "cosine": _cosine}
