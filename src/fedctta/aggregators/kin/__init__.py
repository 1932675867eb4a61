"""Kin: the server finds out from the look of batches which clients share a domain, and remembers all domains it met.

Client i describes its batch of B images: mean s_i and variance v_i, over images, of the ten numbers of `appearance`
(88 bytes, with B and a yes or no). Domain k, of at most `domains`, has the same two vectors, S_k and V_k, computed from
n_k batches. Let v be the median of v_i over clients, and b_i(k) the belief that client i is in domain k. Every round:

    b_i(k) <- ((1 - h) b_i(k) + h / (K + 1)) N(s_i; S_k, V_k (1/B + 1/(B n_k) + a))      h = hazard, a = tolerance
    b_i(0) <- ((1 - h) b_i(0) + h / (K + 1)) N(s_i; s_i, r v)                            a domain not met; r = strange

normalised over the K domains met and the unknown one. It is the forward pass of a hidden Markov model: evidence
accumulates while a client stays, and a shift overrides it. `tolerance` limits the evidence to that of 1/a images, for
clients of one domain with different classes. Two clients in unknown domains share a domain with the odds

    a_ij / (1 - a_ij) = N(s_i - s_j; 0, 2 (1/B + a) v) / N(0; 0, 2 r v)

The client with most such peers, if any, starts a new domain with all clients with a_ij > 1/2. It replaces the domain
with the least weight. A client then receives the means of its domains, and keeps its own model as far as it is in none:

    W_ij = sum_k b_i(k) b_j(k) / sum_m b_m(k)  +  b_i(0) [i = j]

which is a matrix of rank K plus a diagonal, and mixed as such. The domains are updated with the new batches, each with
the weight b_i(k): S_k and V_k become means over n_k batches; n_k falls by 0.1 % per round and is at most `horizon`. If
clients upload statistics of the current batch (adapter `bn`), the server remembers these as well: m_k and q_k are the
means over n_k batches of d = mean - source mean and of var + d^2:

    mean = source mean + m_k,   var = q_k - m_k^2                   which contains the variance between batches

and sends sum_k b_i(k) (mean, var)_k + b_i(0) (W theta)_i. Running averages of statistics are mixed by W alone, because
a mean over rounds of running averages would not converge. The client checks at its first BatchNorm layer whether its
statistics are of the current batch. Weights, scales and shifts, which clients learn by small steps, move towards kin
and all others at the pace p_i, and what all have learnt in common is pulled back to the source (`drift`):

    p_i = pace (1 - s_i / skew), limited to the range from 0 to pace

Where its kin see other classes, a client should keep what it has learnt about its own: s_i says how much less often one
of its images and one of its kin's have the same class than two of its own images; 0 means no difference, 1 is the
largest (`partiality`, over the last 50 rounds; for it, clients that learn send one number more than there are classes).

Memory: N (K + 4) numbers of beliefs and comparisons, and K models of statistics. The server asks for no labels,
features or images.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Mixing, Server, Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.kin.appearance import NUMBERS, of_batch
from fedctta.aggregators.kin.drift import drift, pull_to_source, relied_on
from fedctta.aggregators.kin.partiality import excess, guesses
from fedctta.core.clients import Client
from fedctta.core.network import Network, Statistics, Tensors, batch_statistics
from fedctta.errors import UserError

FADE = 0.999
SAME = 0.01  # in standard deviations: statistics that differ by less are of the same batch
TINY = 1e-8
LATELY = 0.98  # factor per round by which older comparisons lose weight


@dataclass(frozen=True)
class Kin(Aggregator):
    """Find out from the look of batches which clients share a domain, and remember every domain's statistics."""

    name: ClassVar[str] = "kin"
    title: ClassVar[str] = "Kin"
    domains: int = 32
    hazard: float = 0.1
    tolerance: float = 0.01
    strange: float = 10.0
    horizon: float = 500.0
    pace: float = 0.4
    skew: float = 0.2
    pull: float = 0.002

    def __post_init__(self) -> None:
        if self.domains < 1:
            raise UserError(f"kin.domains={self.domains} must be at least 1")
        if not 0 < self.hazard < 1:
            raise UserError(f"kin.hazard={self.hazard} must lie between 0 and 1")
        for name in ("pace", "pull"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"kin.{name}={getattr(self, name)} must lie between 0 and 1")
        if not self.skew > 0:
            raise UserError(f"kin.skew={self.skew} must be above 0")
        for name, least in (("tolerance", 0), ("strange", 1), ("horizon", 1)):
            if getattr(self, name) < least:
                raise UserError(f"kin.{name}={getattr(self, name)} must be at least {least}")

    def mixes(self, measured: bool) -> bool:
        """Statistics of one batch are remembered, and clients receive those of their domain."""
        return not measured

    def init(self, server: Server) -> Tensors:
        """Start without domains; memory for statistics is added when it is known whether clients send them."""
        device = server.network.device
        unknown = torch.zeros(server.clients, self.domains + 1, device=device)
        unknown[:, -1] = 1
        return {
            "belief": unknown,
            "weight": torch.zeros(self.domains, device=device),
            "look": torch.zeros(self.domains, NUMBERS, device=device),
            "spread": torch.zeros(self.domains, NUMBERS, device=device),
            "excess": torch.zeros(server.clients, device=device),
            "repeats": torch.zeros(server.clients, device=device),
        }

    def signal(self, network: Network, client: Client, x: Tensor) -> Tensors:
        """Describe the batch: its look, number of images, whether the uploaded statistics are of it, and its classes.

        Classes are predicted only for clients that learn, since only they have learnt tensors to keep.
        """
        look, spread = of_batch(x)
        said = {"look": look, "spread": spread, "images": torch.full_like(look[0], len(x))}
        if client.own.keys() & network.statistics.keys():
            said["fresh"] = fresh(network, client, x)
        if not all(map(is_statistic, client.own)):
            said["guess"], said["same"] = guesses(network, x)
        return said

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Update beliefs, start a new domain if needed, update the domains, and return who is kin."""
        look, spread, images = (uploads.signals[name] for name in ("look", "spread", "images"))
        possible = (look.abs() + spread.sqrt()).sum(1) < torch.inf  # nan, also the root of what is below 0, is not
        trust = uploads.active.to(look.dtype) if uploads.trust is None else uploads.trust
        heard = possible & (images >= 1) & (trust > 0)
        trust, rows = trust * heard, heard[:, None]
        look, spread = torch.where(rows, look, 0), torch.where(rows, spread, 0)
        error = torch.where(heard, images, 1).reciprocal() + self.tolerance
        typical = (trust @ error) / trust.sum().clamp_min(TINY)
        usual = middle(spread, heard)

        belief = self._believe(look, usual, error, memory)
        like = alike(look, 2 * typical * usual, self.strange / typical)
        belief, here = found_domain(belief, like, heard, memory["weight"])
        weight = torch.where(here, 0, memory["weight"])
        gone = F.pad(here, (0, 1), value=False)  # no client is in a domain that was replaced
        memory = memory | {"belief": torch.where(rows | gone, belief, memory["belief"])}
        known = belief[:, :-1] * rows
        kin = Groups(known, (known / known.sum(0).clamp_min(TINY)).T, 1 - known.sum(1))

        heed = known * trust[:, None]
        memory["weight"], part, kept = self._grown(weight, heed)
        memory["look"] = blend_rows(memory["look"], kept, part, look)
        memory["spread"] = blend_rows(memory["spread"], kept, part, spread)
        if "fresh" in uploads.signals:
            memory |= self._remembered(server.network, uploads, heed, here, memory)
        if all(map(is_statistic, uploads.own)):
            return kin, memory
        memory |= self._compared(kin, uploads, memory)
        partial = memory["excess"] / memory["repeats"].clamp_min(TINY)
        relied = relied_on(kin)
        slow = drift(kin, relied, self.pace * (1 - partial / self.skew).clamp(0, 1))
        memory["relied"] = relied * (uploads.active if uploads.trust is None else uploads.trust)
        return {name: kin if is_statistic(name) else slow for name in uploads.own}, memory

    def _compared(self, kin: Groups, uploads: Uploads, memory: Tensors) -> Tensors:
        """Return the sums over the last rounds of e_i and o_i; absent clients keep theirs."""
        mean, same = (uploads.signals[name].nan_to_num(0, 0, 0).clamp(0, 1) for name in ("guess", "same"))
        return {
            name: torch.where(uploads.active, torch.add(new, memory[name], alpha=LATELY), memory[name])
            for name, new in zip(("excess", "repeats"), excess(kin, mean, same), strict=True)
        }

    def _believe(self, look: Tensor, usual: Tensor, error: Tensor, memory: Tensors) -> Tensor:
        """Return b[N, K + 1], the unknown domain last; densities are divided by N(s_i; s_i, v)."""
        n, error = memory["weight"], error[:, None]
        width = torch.lerp(memory["spread"], usual, (n + 1).reciprocal()[:, None]) + TINY
        error = torch.addcdiv(error, error - self.tolerance, n.clamp_min(1))
        apart = distances(look, memory["look"], width)
        misfit = torch.addcdiv((width / (usual + TINY)).log().sum(-1), apart, error).add_(error.log(), alpha=NUMBERS)
        there = F.pad(n > 0, (0, 1), value=True)
        prior = torch.add(self.hazard * there / there.sum(), memory["belief"], alpha=1 - self.hazard)
        belief = prior.log_()  # -inf in places where no domain is
        belief[:, :-1].sub_(misfit, alpha=0.5)
        belief[:, -1].sub_(0.5 * NUMBERS * log(self.strange))
        return belief.softmax(1)

    def _grown(self, weight: Tensor, heed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return n[K] after this round's batches, the part[K, N] of it that each is, and the part[K, 1] that is old.

        Of a domain just founded nothing is old, exactly: what its place held before may be anything.
        """
        came = heed.sum(0)
        total = torch.add(came, weight, alpha=FADE).clamp_max(self.horizon)
        whole = torch.maximum(total, came).clamp_min(TINY)
        return total, (heed / whole).T, (1 - came / whole)[:, None]

    def _remembered(self, network: Network, uploads: Uploads, heed: Tensor, here: Tensor, memory: Tensors) -> Tensors:
        """Return the statistics of all domains with this round's batches in them."""
        names = means_in(uploads.own)
        centre = torch.cat([network.state[name] for name in names])
        rows = joined(uploads.own, names + variances(names))  # of client i: d, then var + d^2
        mean, square = rows.chunk(2, 1)
        square.addcmul_(mean.sub_(centre), mean)
        new = ((uploads.signals["fresh"] == 1) & (rows.sum(1).abs() < torch.inf))[:, None]
        rows.nan_to_num_(0, 0, 0)  # what is not new weighs nothing, and nothing times a number is nothing
        if "batches" not in memory:
            nothing = rows.new_zeros(self.domains, rows.shape[1])
            memory = {"batches": torch.zeros_like(memory["weight"]), "moments": nothing}
        batches, part, kept = self._grown(torch.where(here, 0, memory["batches"]), heed * new)
        after = blend_rows(memory["moments"], kept, part, rows)
        return {"batches": batches, "moments": after}

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Send the remembered statistics of a client's domain, as far as it is known; the rest as mixed and pulled."""
        source = server.network.state
        mixed = mixed | {
            name: pull_to_source(tensor, source[name], self.pull * memory["relied"], receive)
            for name, tensor in mixed.items()
            if not is_statistic(name)
        }
        if "moments" not in memory:
            return mixed, memory
        names = means_in(mixed)
        centre = torch.cat([source[name] for name in names])
        names += variances(names)
        fresh = (uploads.signals["fresh"] == 1) & receive
        known = memory["belief"][:, :-1] * (memory["batches"] > 0) * fresh[:, None]
        mean, square = memory["moments"].chunk(2, 1)
        var = torch.addcmul(square, mean, mean, value=-1).clamp_min_(0)
        sent = known @ torch.cat([mean + centre, var], 1)
        sent.addcmul_(1 - known.sum(1, keepdim=True), joined(mixed, names))
        parts = torch.split(sent, [mixed[name].shape[1] for name in names], 1)
        return mixed | dict(zip(names, parts, strict=True)), memory


def middle(rows: Tensor, heard: Tensor) -> Tensor:
    """Return the median of rows[N, D] over the clients heard, the lower of two; 1 if there are none."""
    return torch.where(heard, rows.T, torch.nan).nanmedian(1).values.nan_to_num(1)


def distances(rows: Tensor, centres: Tensor, variance: Tensor) -> Tensor:
    """Return sum_d (rows_id - centres_kd)^2 / variance_kd of rows[N, D] and centres[K, D].

    Squares and products cancel, which doubles can afford: of single numbers the result is exact to single precision.
    """
    rows, centres, weight = rows.double(), centres.double(), variance.double().reciprocal()
    weighted = centres * weight
    squares = torch.addmm((centres * weighted).sum(1), rows.square(), weight.T)
    return squares.addmm_(rows, weighted.T, alpha=-2).to(variance.dtype)


def alike(look: Tensor, variance: Tensor, strange: Tensor) -> Tensor:
    """Return a[N, N]: how likely two batches are of one domain, the variance of their difference then being given.

    If they are not, it is `strange` times as large.
    """
    apart = distances(look, look, (variance + TINY).expand_as(look))
    return torch.sub(0.5 * NUMBERS * strange.log(), apart, alpha=0.5).sigmoid_()


def found_domain(belief: Tensor, like: Tensor, heard: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Let the client with most peers in an unknown domain start a new domain, if there is such a client.

    Return the beliefs b[N, K + 1] after it, and a mask[K] of the place that was taken.
    """
    unknown = belief[:, -1] * heard
    leader = (unknown * (like @ unknown)).argmax(0, keepdim=True)
    needed = unknown.index_select(0, leader) > 0.5
    members = (like.index_select(0, leader).squeeze(0) > 0.5) * unknown * needed
    here = (torch.arange(len(weight), device=weight.device) == weight.argmin()) & needed
    known = torch.where(here, members[:, None], belief[:, :-1])
    after = torch.cat([known, (belief[:, -1] - members)[:, None]], 1)
    return after / after.sum(1, keepdim=True).clamp_min(TINY), here


def blend_rows(old: Tensor, kept: Tensor, part: Tensor, rows: Tensor) -> Tensor:
    """Return kept_k old_k + sum_i part_ki rows_i for old[K, D] and rows[N, D]."""
    return (old * kept).addmm_(part, rows)


def is_statistic(name: str) -> bool:
    """Whether a tensor is a mean or a variance of a BatchNorm layer."""
    return name.endswith(("running_mean", "running_var"))


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
    """Return 1 if the client's statistics are those of x, and 0 if they contain anything older."""
    seen: list[Tensor] = []

    def rule(name: str, inputs: Tensor, own: Statistics) -> tuple[Statistics, Statistics]:
        batch = batch_statistics(inputs)
        seen.append(((own.mean - batch.mean).abs() <= SAME * (batch.var + TINY).sqrt()).all())
        raise _EnoughError

    with suppress(_EnoughError):
        network(client.own, x, rule)
    return seen[0].to(x.dtype)
