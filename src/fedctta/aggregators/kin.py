"""Kin: the server finds out who shares a domain from how batches look, and remembers every domain it has met.

Client i says how its batch of B images looks: mean s_i and variance v_i, over images, of the ten numbers of
`appearance` (88 bytes, with B and a yes or no). Domain k, of at most `domains`, is known by the same two, S_k and V_k,
from n_k batches. With v the median of v_i over clients, and b_i(k) what was believed of client i, every round:

    b_i(k) <- ((1 - h) b_i(k) + h / (K + 1)) N(s_i; S_k, V_k (1/B + 1/(B n_k) + a))      h = hazard, a = tolerance
    b_i(0) <- ((1 - h) b_i(0) + h / (K + 1)) N(s_i; s_i, r v)                            a domain not met; r = strange

normalised over the K domains met and the unknown one. It is the forward pass of a hidden Markov model: evidence adds up
while a client stays, and a shift overrules it. `tolerance` bounds the evidence at that of 1/a images, for clients of
one domain with different classes. Two clients in unknown domains are alike with the odds

    a_ij / (1 - a_ij) = N(s_i - s_j; 0, 2 (1/B + a) v) / N(0; 0, 2 r v)

The one with most such peers, if any, founds a domain of those with a_ij > 1/2, in the place of the domain with least
weight. Then

    W_ij ~ sum_k b_i(k) b_j(k) + b_i(0) b_j(0) a_ij

and the domains take in what was said of them, each by the weight b_i(k): S_k and V_k become means over n_k batches;
n_k fades by 0.1 % a round and ends at `horizon`. With clients that upload statistics of this very batch (adapter `bn`),
the server remembers them as well, m_k and q_k being means over n_k batches of d = mean - source mean and of var + d^2:

    mean = source mean + m_k,   var = q_k - m_k^2                   which contains the variance between batches

and sends sum_k b_i(k) (mean, var)_k + b_i(0) (W theta)_i. All other tensors, weights and running averages of
statistics, are mixed by W alone: a mean over rounds of what already is one would never arrive. Whether statistics are
of this batch is seen by the client at its first BatchNorm layer.

Memory: N (K + 1) numbers of beliefs and K models of statistics. Nobody's labels, features or images are asked for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.appearance import NUMBERS, of_batch
from fedctta.aggregators.vectors import for_active
from fedctta.clients import Client
from fedctta.errors import UserError
from fedctta.network import Network, Statistics, Tensors, batch_statistics

FADE = 0.999
SAME = 0.01  # of a standard deviation: statistics that differ by less are of the same batch
TINY = 1e-8


@dataclass(frozen=True)
class Kin(Aggregator):
    """Find out who shares a domain from how batches look, and remember every domain's statistics."""

    name: ClassVar[str] = "kin"
    domains: int = 32
    hazard: float = 0.1
    tolerance: float = 0.01
    strange: float = 10.0
    horizon: float = 500.0

    def __post_init__(self) -> None:
        if self.domains < 1:
            raise UserError(f"kin.domains={self.domains} must be at least 1")
        if not 0 < self.hazard < 1:
            raise UserError(f"kin.hazard={self.hazard} must lie between 0 and 1")
        for name, least in (("tolerance", 0), ("strange", 1), ("horizon", 1)):
            if getattr(self, name) < least:
                raise UserError(f"kin.{name}={getattr(self, name)} must be at least {least}")

    def init(self, server: Server) -> Tensors:
        """Know no domain; statistics join when it is known whether clients send them."""
        device = server.network.device
        unknown = torch.zeros(server.clients, self.domains + 1, device=device)
        unknown[:, -1] = 1
        return {
            "belief": unknown,
            "weight": torch.zeros(self.domains, device=device),
            "look": torch.zeros(self.domains, NUMBERS, device=device),
            "spread": torch.zeros(self.domains, NUMBERS, device=device),
        }

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Say how the batch looks, of how many images, and whether the statistics to be sent are of this batch."""
        look, spread = of_batch(x)
        said = {"look": look, "spread": spread, "images": torch.full_like(look[0], len(x))}
        if client.own.keys() & network.statistics.keys():
            said["fresh"] = fresh(network, client, x)
        return said

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Update beliefs, found a domain if there is need, take in what was said, and say who is kin."""
        look, spread, images = (uploads.signals[name] for name in ("look", "spread", "images"))
        sane = look.isfinite().all(1) & spread.isfinite().all(1) & (spread >= 0).all(1) & (images >= 1)
        trust = uploads.active.to(look.dtype) if uploads.trust is None else uploads.trust
        trust = torch.where(sane, trust, 0)
        heard = trust > 0
        look, spread = (torch.where(heard[:, None], said, 0) for said in (look, spread))
        error = self.tolerance + 1 / torch.where(heard, images, 1)
        share = trust / trust.sum().clamp_min(TINY)
        usual = middle(spread, heard)

        belief = self._believe(look, usual, error, memory)
        like = alike(look, 2 * (share @ error) * usual, self.strange / (share @ error))
        belief, here = found(belief, like, heard, memory["weight"])
        weight = torch.where(here, 0, memory["weight"])
        stale = torch.cat([here, here.new_zeros(1)])
        memory = memory | {"belief": for_active(heard, belief, memory["belief"] * ~stale)}
        known, unknown = belief[:, :-1], belief[:, -1]
        heed = known * trust[:, None]
        memory["weight"], rate = self._grown(weight, heed)
        memory["look"] = moved(memory["look"], heed, look, rate)
        memory["spread"] = moved(memory["spread"], heed, spread, rate)
        if "fresh" in uploads.signals:
            memory |= self._remembered(server.network, uploads, heed, here, memory)
        kin = torch.addmm(like.mul_(unknown).mul_(unknown[:, None]), known, known.T)
        kin.diagonal().add_(TINY)
        return kin / kin.sum(1, keepdim=True), memory

    def _believe(self, look: Tensor, usual: Tensor, error: Tensor, memory: Tensors) -> Tensor:
        """Return b[N, K + 1], the unknown domain last."""
        n, met = memory["weight"], memory["weight"] > 0
        width = (n[:, None] * memory["spread"] + usual) / (n[:, None] + 1) + TINY
        error = error[:, None] + (error[:, None] - self.tolerance) / n.clamp_min(1)
        apart = ((look[:, None] - memory["look"]) / width.sqrt()).square().sum(-1)
        fit = -0.5 * (apart / error + NUMBERS * error.log() + width.log().sum(-1))
        strange = -0.5 * (NUMBERS * log(self.strange) + (usual + TINY).log().sum()).expand(len(look), 1)
        there = torch.cat([met, met.new_ones(1)])
        prior = (1 - self.hazard) * memory["belief"] + self.hazard * there / there.sum()
        return torch.where(there, torch.cat([fit, strange], 1) + prior.log(), -torch.inf).softmax(1)

    def _grown(self, weight: Tensor, heed: Tensor) -> tuple[Tensor, Tensor]:
        """Return n[K] after this round's batches, and the part of it that they are."""
        came = heed.sum(0)
        total = (FADE * weight + came).clamp_max(self.horizon)
        return total, (came / total.clamp_min(TINY)).clamp_max(1)

    def _remembered(self, network: Network, uploads: Uploads, heed: Tensor, here: Tensor, memory: Tensors) -> Tensors:
        """Return the statistics of all domains with this round's batches in them."""
        names = means_in(uploads.own)
        centre = torch.cat([network.state[name] for name in names])
        mean = joined(uploads.own, names).sub_(centre)
        square = joined(uploads.own, variances(names)).addcmul_(mean, mean)
        new = ((uploads.signals["fresh"] == 1) & square.sum(1).isfinite())[:, None]
        rows = {"mean": mean.masked_fill_(~new, 0), "square": square.masked_fill_(~new, 0)}
        if "batches" not in memory:
            nothing = {name: row.new_zeros(self.domains, row.shape[1]) for name, row in rows.items()}
            memory = {"batches": torch.zeros_like(memory["weight"]), **nothing}
        heed = heed * new
        batches, rate = self._grown(torch.where(here, 0, memory["batches"]), heed)
        after = {name: moved(memory[name], heed, row, rate) for name, row in rows.items()}
        return {"batches": batches, "centre": centre, "fresh": new, **after}

    def step(self, mixed: Tensors, active: Tensor, memory: Tensors) -> tuple[Tensors, Tensors]:
        """Send what is remembered of a client's domain, as far as it is known; all else as mixed."""
        if "mean" not in memory:
            return mixed, memory
        names = means_in(mixed)
        known = memory["belief"][:, :-1] * (memory["batches"] > 0) * (memory["fresh"] & active[:, None])
        rest = 1 - known.sum(1, keepdim=True)
        mean = known @ (memory["mean"] + memory["centre"])
        var = known @ (memory["square"] - memory["mean"].square()).clamp_min(0)
        sizes = [mixed[name].shape[1] for name in names]
        parts = (*torch.split(mean, sizes, 1), *torch.split(var, sizes, 1))
        of = zip(names + variances(names), parts, strict=True)
        return mixed | {name: torch.addcmul(part, rest, mixed[name]) for name, part in of}, memory


def middle(rows: Tensor, heard: Tensor) -> Tensor:
    """Return the median of rows[N, D] over those heard, the lower of two; 1 if there are none."""
    ordered = torch.where(heard[:, None], rows, torch.inf).sort(0).values
    half = ordered.index_select(0, ((heard.sum() - 1).clamp_min(0) // 2).reshape(1)).squeeze(0)
    return torch.where(half.isfinite(), half, 1)


def alike(look: Tensor, variance: Tensor, strange: Tensor) -> Tensor:
    """Return a[N, N]: how likely two batches are of one domain, the variance of their difference then being given.

    If they are not, it is `strange` times as large.
    """
    scaled = look / (variance + TINY).sqrt()
    apart = torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (0.5 * (NUMBERS * strange.log() - apart)).sigmoid()


def found(belief: Tensor, like: Tensor, heard: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Let the client with most peers in an unknown domain found one, if there is such a client.

    Return the beliefs b[N, K + 1] after it, and a mask[K] of the place that was taken.
    """
    unknown = belief[:, -1] * heard
    leader = (unknown * (like @ unknown)).argmax().reshape(1)
    needed = unknown.index_select(0, leader) > 0.5
    members = (like.index_select(0, leader).squeeze(0) > 0.5) * unknown * needed
    here = (torch.arange(len(weight), device=weight.device) == weight.argmin()) & needed
    known = torch.where(here, members[:, None], belief[:, :-1])
    after = torch.cat([known, (belief[:, -1] - members)[:, None]], 1)
    return after / after.sum(1, keepdim=True).clamp_min(TINY), here


def moved(old: Tensor, heed: Tensor, rows: Tensor, rate: Tensor) -> Tensor:
    """Return old[K, D] moved by rate[K] towards the means of rows[N, D] with weights heed[N, K]."""
    by = heed * (rate / heed.sum(0).clamp_min(TINY))
    return torch.addmm(old * (1 - rate)[:, None], by.T, rows)


def means_in(own: Tensors) -> list[str]:
    """Return the names of all means of BatchNorm layers."""
    return sorted(name for name in own if name.endswith("running_mean"))


def variances(means: list[str]) -> list[str]:
    """Return the names of the variances that belong to means."""
    return [name.removesuffix("mean") + "var" for name in means]


def joined(own: Tensors, names: list[str]) -> Tensor:
    """Lay tensors[N, ...] side by side."""
    return torch.cat([own[name] for name in names], 1)


class _EnoughError(Exception):
    """Ends a pass after its first BatchNorm layer."""


def fresh(network: Network, client: Client, x: Tensor) -> Tensor:
    """Return 1 if the client's statistics are those of x, and 0 if there is anything older in them."""
    seen: list[Tensor] = []

    def rule(name: str, inputs: Tensor, own: Statistics) -> tuple[Statistics, Statistics]:
        batch = batch_statistics(inputs)
        seen.append(((own.mean - batch.mean).abs() <= SAME * (batch.var + TINY).sqrt()).all())
        raise _EnoughError

    with suppress(_EnoughError):
        network(client.own, x, rule)
    return seen[0].to(x.dtype)
