"""What the server believes of clients' domains: the forward pass of a hidden Markov model over looks of batches.

Client i describes its batch of B images: mean s_i and variance v_i, over images, of the twelve numbers of `appearance`.
Domain k has the same two vectors, S_k and V_k, computed from n_k batches. Let v be the median of v_i over clients, and
b_i(k) the belief that client i is in domain k. Every round:

    b_i(k) <- ((1 - h) b_i(k) + h / (K + 1)) N(s_i; S_k, V_k (1/B + 1/(B n_k) + a))      h = hazard, a = tolerance
    b_i(0) <- ((1 - h) b_i(0) + h / (K + 1)) N(s_i; s_i, r v)                            a domain not met; r = strange

normalised over the K domains met and the unknown one. Two clients in unknown domains share a domain with the odds

    a_ij / (1 - a_ij) = N(s_i - s_j; 0, 2 (1/B + a) v) / N(0; 0, 2 r v)

The client with most such peers, if any, starts a new domain with all clients with a_ij > 1/2. It replaces the domain
with the least weight.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Uploads
from fedctta.core.appearance import NUMBERS
from fedctta.core.network import Tensors

TINY = 1e-8
FOUNDING = 0.5  # a client that is in an unknown domain less likely than this founds none


class Heard(NamedTuple):
    """What clients say of their batches; what those who are not heard say is replaced by zeros."""

    look: Tensor  # s[N, D]
    spread: Tensor  # v[N, D]
    error: Tensor  # 1/B + a [N]
    trust: Tensor  # the weight of an upload [N], 0 of those who are not heard
    heard: Tensor  # whose numbers are possible, and whose upload counts [N]


def hear(uploads: Uploads, tolerance: float) -> Heard:
    """Return what clients say of their batches, without the absent and what cannot be."""
    look, spread, images = (uploads.signals[name] for name in ("look", "spread", "images"))
    possible = (look.abs() + spread.sqrt()).sum(1) < torch.inf  # nan, also the root of what is below 0, is not
    trust = uploads.active.to(look.dtype) if uploads.trust is None else uploads.trust
    heard = possible & (images >= 1) & (trust > 0)
    rows = heard[:, None]
    return Heard(
        torch.where(rows, look, 0),
        torch.where(rows, spread, 0),
        torch.where(heard, images, 1).reciprocal() + tolerance,
        trust * heard,
        heard,
    )


def update_domains(
    said: Heard, memory: Tensors, *, hazard: float, tolerance: float, strange: float
) -> tuple[Tensor, Tensor]:
    """Return the beliefs b[N, K + 1] after this round's batches, and a mask[K] of the domain that was replaced."""
    typical = (said.trust @ said.error) / said.trust.sum().clamp_min(TINY)
    usual = take_median(said.spread, said.heard)
    belief = update_belief(said, usual, memory, hazard=hazard, tolerance=tolerance, strange=strange)
    if not belief.is_cuda and not bool((belief[:, -1] * said.heard > FOUNDING).any()):  # a GPU would be waited for
        return normalise(belief), torch.zeros_like(memory["weight"], dtype=torch.bool)
    like = compare_looks(said.look, 2 * typical * usual, strange / typical)
    return found_domain(belief, like, said.heard, memory["weight"])


def update_belief(
    said: Heard, usual: Tensor, memory: Tensors, *, hazard: float, tolerance: float, strange: float
) -> Tensor:
    """Return b[N, K + 1], the unknown domain last; densities are divided by N(s_i; s_i, v), with v = usual[D]."""
    n, error = memory["weight"], said.error[:, None]
    width = torch.lerp(memory["spread"], usual, (n + 1).reciprocal()[:, None]) + TINY
    error = torch.addcdiv(error, error - tolerance, n.clamp_min(1))
    apart = measure_distances(said.look, memory["look"], width)
    misfit = torch.addcdiv((width / (usual + TINY)).log().sum(-1), apart, error).add_(error.log(), alpha=NUMBERS)
    there = F.pad(n > 0, (0, 1), value=True)
    prior = torch.add(hazard * there / there.sum(), memory["belief"], alpha=1 - hazard)
    belief = prior.log_()  # -inf in places where no domain is
    belief[:, :-1].sub_(misfit, alpha=0.5)
    belief[:, -1].sub_(0.5 * NUMBERS * log(strange))
    return belief.softmax(1)


def take_median(rows: Tensor, heard: Tensor) -> Tensor:
    """Return the median of rows[N, D] over the clients heard, the lower of two; 1 if there are none."""
    return torch.where(heard, rows.T, torch.nan).nanmedian(1).values.nan_to_num(1)


def measure_distances(rows: Tensor, centres: Tensor, variance: Tensor) -> Tensor:
    """Return sum_d (rows_id - centres_kd)^2 / variance_kd of rows[N, D] and centres[K, D].

    Squares and products cancel, which doubles can afford: of single numbers the result is exact to single precision.
    """
    rows, centres, weight = rows.double(), centres.double(), variance.double().reciprocal()
    weighted = centres * weight
    squares = torch.addmm((centres * weighted).sum(1), rows.square(), weight.T)
    return squares.addmm_(rows, weighted.T, alpha=-2).to(variance.dtype)


def compare_looks(look: Tensor, variance: Tensor, strange: Tensor) -> Tensor:
    """Return a[N, N]: how likely two batches are of one domain, the variance of their difference then being given.

    If they are not, it is `strange` times as large.
    """
    apart = measure_distances(look, look, (variance + TINY).expand_as(look))
    return torch.sub(0.5 * NUMBERS * strange.log(), apart, alpha=0.5).sigmoid_()


def found_domain(belief: Tensor, like: Tensor, heard: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Let the client with most peers in an unknown domain start a new domain, if there is such a client.

    Return the beliefs b[N, K + 1] after it, and a mask[K] of the place that was taken.
    """
    unknown = belief[:, -1] * heard
    leader = (unknown * (like @ unknown)).argmax(0, keepdim=True)
    needed = unknown.index_select(0, leader) > FOUNDING
    members = (like.index_select(0, leader).squeeze(0) > 0.5) * unknown * needed
    here = (torch.arange(len(weight), device=weight.device) == weight.argmin()) & needed
    known = torch.where(here, members[:, None], belief[:, :-1])
    return normalise(torch.cat([known, (belief[:, -1] - members)[:, None]], 1)), here


def normalise(belief: Tensor) -> Tensor:
    """Divide every client's beliefs b[N, K + 1] by their sum."""
    return belief / belief.sum(1, keepdim=True).clamp_min(TINY)
