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

Where paper and published code differ, measurements chose the default (docs/fedctta.md). The code smooths the indicator
over rounds,

    mu_i <- a mu_i + (1 - a) mean output            a = `ema`, 0.9 there

which the paper does not mention: without it even clients of one domain lie far apart and W is nearly I.
It is the default here, and costs the server N K numbers of memory; `ema=0` is the paper's text.

`variant=code` is the published code. It draws new noise for every client and round (`redraw=client`), 64 images
(`samples=64`; the default of 16 is as accurate with one probe for all), and probes models in evaluation mode. With
TTA-bn, where clients own BatchNorm statistics alone, that is the model a client *received* in the round before
(`statistics=received`; in the first round, in which nothing was received, the noise's own statistics); clients that own
weights are probed as adapted. With one probe shared by all, received models would always stay equal: equal models
give a uniform W, and that gives equal models. Different noise per client prevents this. `redraw`, `samples` and
`statistics` override the variant.

W and the mixing cost N^2, all else N. With thousands of clients `neighbours=k` keeps the k largest weights of every row
(the client itself among them) and mixes only those: N k numbers (docs/scale.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.mixing import Mixing
from fedctta.aggregators.common.neighbours import Neighbours, nearest
from fedctta.aggregators.common.vectors import for_active
from fedctta.core.clients import Client, take
from fedctta.core.network import Network, Output, Tensors
from fedctta.core.norms import NormRule, refreshed, stored
from fedctta.core.randomness import fork, keys, numbered, uniform
from fedctta.errors import UserError
from fedctta.ranges import Count, CountOrZero, Positive, ShareBelowOne

# How many noise images go through a model at once: on a CPU as many as stay in its cache; elsewhere it bounds memory.
CPU_IMAGES, CUDA_IMAGES = 400, 16_000
SAMPLES = {"paper": 16, "code": 64}
REDRAW = {"paper": "never", "code": "client"}
PURPOSE = 0xFEDC  # tells noise from what else is drawn by the seed


@dataclass(frozen=True)
class FedCTTA(Aggregator):
    """Weight peers by how alike their models answer shared noise (softmax of negative distance)."""

    name: ClassVar[str] = "fedctta"
    title: ClassVar[str] = "FedCTTA"
    without_images: ClassVar[str] = "probe=noise"
    colour: ClassVar[str] = "#d55e00"
    variant: Literal["paper", "code"] = "paper"
    compare: Literal["logits", "probabilities", "features"] = "logits"
    metric: Literal["euclid", "kl", "ce", "cosine"] = "euclid"
    temperature: Positive = 1.0
    probe: Literal["noise", "images", "batch"] = "noise"
    samples: Count | None = None  # None: the variant's; so are the next two
    redraw: Literal["never", "round", "client"] | None = None
    statistics: Literal["adapted", "received"] | None = None
    ema: ShareBelowOne = 0.9
    squash: bool = False
    neighbours: CountOrZero = 0  # 0: all clients

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.redraw is not None and self.probe != "noise":
            raise UserError(f"fedctta.redraw has no effect with fedctta.probe={self.probe}: leave it out")
        for name in ("samples", "statistics"):
            if getattr(self, name) is not None and self.probe == "batch":
                raise UserError(f"fedctta.{name} has no effect with fedctta.probe=batch: leave it out")

    @property
    def count(self) -> int:
        """How many inputs the probe has."""
        return self.samples or SAMPLES[self.variant]

    @property
    def redrawn(self) -> str:
        """How often noise is drawn anew."""
        return "never" if self.probe != "noise" else self.redraw or REDRAW[self.variant]

    def probes_received(self, own: Tensors) -> bool:
        """Whether the models compared are those received before, given what clients own."""
        if self.variant == "paper" or self.statistics is not None:
            return self.statistics == "received"
        return bool(own) and all(name.endswith(("running_mean", "running_var")) for name in own)

    @property
    def only_mixes(self) -> bool:
        """W comes of answers, unless models that were received are remembered."""
        return self.variant == "paper" and self.statistics != "received"

    def init(self, server: Server) -> Tensors:
        """Remember nothing, unless smoothing or the received models were asked for."""
        if self.compare == "features" and not server.network.has_features:
            raise UserError("fedctta.compare=features needs a model that ends in nn.Linear: use fedctta.compare=logits")
        memory: Tensors = {}
        if self.redrawn != "never":
            memory["round"] = torch.zeros((), dtype=torch.int64, device=server.network.device)
        if self.probe == "images":
            memory["probe"] = server.images(self.count)
        elif self.probe == "noise" and self.redrawn == "never":
            memory["probe"] = noise(server, self.count)
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

    def prepare(self, server: Server, own: Tensors, memory: Tensors) -> Tensors:
        """Probe models as they arrive, where a probe depends on nothing else."""
        if not own or "probe" not in memory or self.probes_received(own):
            return {}
        return {"indicator": self._ask(server, Client(own), lambda c: server.network(c.own, memory["probe"], stored))}

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
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
        scores = take_log(mu) if self.compare == "probabilities" and self.metric in ("kl", "ce") else mu
        form = (self.metric, self.temperature, self.squash)
        weights: Mixing
        if 0 < self.neighbours < len(scores):
            weights = with_neighbours(scores, uploads.active, self.neighbours, *form)
        else:
            weights = collaboration(scores, *form)
        return weights, memory

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Send what was mixed; with statistics=received, remember who received what."""
        received = {f"received.{name}": tensor for name, tensor in mixed.items() if f"received.{name}" in memory}
        return mixed, memory | {name: for_active(receive, new, memory[name]) for name, new in received.items()}

    def _probe(self, server: Server, uploads: Uploads, memory: Tensors) -> Tensor:
        """Indicators[N, K] of all models on the same probe (on one each with redraw=client)."""
        network, own = server.network, uploads.own
        rule: NormRule = stored
        if not own:  # nothing is adapted: all models are the source model
            return torch.zeros(len(uploads.active), 1, device=uploads.active.device)
        if self.probes_received(own):
            known = all(f"received.{name}" in memory for name in own)
            own = {n: memory[f"received.{n}"] if known else network.state[n].expand_as(t) for n, t in own.items()}
            memory |= {f"received.{name}": tensor for name, tensor in own.items()}
            rule = refreshed() if not known and self.variant == "code" else stored
        if "probe" in memory:
            return self._ask(server, Client(own), lambda client: network(client.own, memory["probe"], rule))
        shape = (self.count, *server.shape)
        key = numbered(fork(keys(server.seed, len(uploads.active), network.device), PURPOSE), memory["round"])
        if self.redrawn == "round":
            z = uniform(key[0], shape)
            return self._ask(server, Client(own), lambda client: network(client.own, z, rule))
        clients = Client(own, {"key": key})
        return self._ask(server, clients, lambda c: network(c.own, uniform(c.private["key"], shape), rule))

    def _ask(self, server: Server, clients: Client, answer: Callable[[Client], Output]) -> Tensor:
        """Indicators of all clients' answers, a few clients at a time: memory does not grow with their number."""
        ask = server.lift(lambda client: self.indicator(answer(client)))
        count = len(next(iter(clients.own.values())))
        images = CUDA_IMAGES if server.network.device.type == "cuda" else CPU_IMAGES
        step = max(1, images // self.count)
        return torch.cat([ask(take(clients, slice(start, start + step))) for start in range(0, count, step)])


def noise(server: Server, samples: int) -> Tensor:
    """Uniform noise in [0, 1] shaped like the network's input; the same on every device for a seed."""
    generator = torch.Generator().manual_seed(server.seed * 1_000_003)
    z = torch.rand(samples, *server.shape, generator=generator)
    form = torch.channels_last if z.ndim == 4 else torch.contiguous_format
    return z.to(server.network.device, memory_format=form)


def take_log(p: Tensor) -> Tensor:
    """Return log p, where 0 counts as the smallest number above it: 0 log 0 would be NaN.

    >>> take_log(torch.tensor([0.0, 1.0]))
    tensor([-103.2789,    0.0000])
    """
    smallest = torch.finfo(p.dtype)
    return p.log().clamp_min(math.log(smallest.tiny) + math.log(smallest.eps))


def collaboration(mu: Tensor, metric: str, temperature: float, squash: bool = False) -> Tensor:
    """W: row softmax of the similarity of indicators mu[N, K] over the temperature (Eq. 5 and 7)."""
    return F.softmax(_scores(mu, mu, metric, temperature, squash), dim=1)


def with_neighbours(
    mu: Tensor, active: Tensor, k: int, metric: str, temperature: float, squash: bool = False
) -> Neighbours:
    """W with the k largest weights of every row of `collaboration`, oneself and k - 1 others that are active."""
    return nearest(lambda rows: _scores(mu[rows], mu, metric, temperature, squash), active, k)


def _scores(some: Tensor, mu: Tensor, metric: str, temperature: float, squash: bool) -> Tensor:
    similarity = _SIMILARITY[metric](some, mu)
    return (similarity.exp() if squash else similarity) / temperature


def _euclid(some: Tensor, mu: Tensor) -> Tensor:
    # By differences: exact zeros on the diagonal, which the matrix-product shortcut does not give.
    return -torch.cdist(some, mu, compute_mode="donot_use_mm_for_euclid_dist")


def _kl(some: Tensor, mu: Tensor) -> Tensor:
    log_p = F.log_softmax(some, dim=1)
    return _cross_entropy(some, mu) - (log_p.exp() * log_p).sum(1, keepdim=True)


def _cross_entropy(some: Tensor, mu: Tensor) -> Tensor:
    return F.log_softmax(some, dim=1).exp() @ F.log_softmax(mu, dim=1).T


def _cosine(some: Tensor, mu: Tensor) -> Tensor:
    return F.normalize(some, dim=1) @ F.normalize(mu, dim=1).T


_SIMILARITY = {"euclid": _euclid, "kl": _kl, "ce": _cross_entropy, "cosine": _cosine}
