"""Kin: the server finds out from the look of batches which clients share a domain, and remembers all domains it met.

Client i describes its batch of B images: mean s_i and variance v_i, over images, of the twelve numbers of `appearance`
(104 bytes, with B and a yes or no). The server remembers at most `domains` domains by the same two vectors, and finds
every round b_i(k), how likely client i is in domain k, and b_i(0), how likely in one not met (`belief`). Evidence
accumulates while a client stays, and a shift overrides it. `tolerance` limits the evidence to that of 1/tolerance
images, for clients of one domain with different classes. Clients in unknown domains that look alike start a new one.
A client then receives the means of its domains, and keeps its own model as far as it is in none:

    W_ij = sum_k b_i(k) b_j(k) / sum_m b_m(k)  +  b_i(0) [i = j]

which is a matrix of rank K plus a diagonal, and mixed as such. The domains are updated with the new batches, each with
the weight b_i(k). If clients upload statistics of the current batch (adapter `bn`), the server remembers these as well,
and sends those of a client's domains (`statistics_memory`). Running averages are mixed by W alone, because a mean over
rounds of running averages would not converge. The client checks at its first BatchNorm layer whether its statistics are
of the current batch (`freshness`). Weights, scales and shifts, which clients learn by small steps, move
towards kin and all others at the pace p_i, and what all have learnt in common is pulled back to the source (`drift`):

    p_i = pace (1 - s_i / skew), limited to the range from 0 to pace

Where its kin see other classes, a client should keep what it has learnt about its own: s_i says how much less often one
of its images and one of its kin's have the same class than two of its own images; 0 means no difference, 1 is the
largest (`partiality`, over the last 50 rounds; for it, clients that learn send one number more than there are classes).

With `clip` above 0, what single clients say of a domain is kept apart and clipped before it is added up (`parts`), so
that a few lies do not spoil what is remembered.

Memory: N (K + 4) numbers of beliefs and comparisons, and K models of statistics (8 K
more with `clip`). The server asks for no labels,
features or images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.mixing import Mixing
from fedctta.aggregators.kin import plain
from fedctta.aggregators.kin.belief import TINY
from fedctta.aggregators.kin.drift import drift, pull_all, relied_on
from fedctta.aggregators.kin.freshness import check_fresh
from fedctta.aggregators.kin.fusing import find_fused
from fedctta.aggregators.kin.partiality import guesses, remember_excess
from fedctta.aggregators.kin.statistics_memory import is_statistic
from fedctta.core.appearance import NUMBERS, of_batch
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.ranges import AtLeastOne, Count, NotNegative, Positive, Range, Share


@dataclass(frozen=True)
class Kin(Aggregator):
    """Find out from the look of batches which clients share a domain, and remember every domain's statistics."""

    name: ClassVar[str] = "kin"
    title: ClassVar[str] = "Kin"
    looks: ClassVar[bool] = True
    domains: Count = 32
    hazard: Annotated[float, Range(0, 1, open_least=True, open_most=True)] = 0.1
    tolerance: NotNegative = 0.01
    strange: AtLeastOne = 7.0
    horizon: AtLeastOne = 500.0
    pace: Share = 0.4
    skew: Positive = 0.2
    pull: Share = 0.002
    clip: NotNegative = 0.0

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
            said["fresh"] = check_fresh(network, client, x)
        if not all(map(is_statistic, client.own)):
            said["guess"], said["same"] = guesses(network, x)
        return said

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Mixing, Tensors]:
        """Update beliefs, start a new domain if needed, update the domains, and return who is kin."""
        rates = {name: getattr(self, name) for name in ("hazard", "tolerance", "strange", "horizon")}
        if self.clip:
            kin, memory = plain.update_all(server.network, uploads, memory, **rates, clip=self.clip)
        else:
            way = find_fused(uploads, self.domains) or plain
            kin, memory = way.update_all(server.network, uploads, memory, **rates)
        if all(map(is_statistic, uploads.own)):
            return kin, memory
        memory |= remember_excess(kin, uploads, memory)
        slow, memory["relied"] = self._slow(kin, uploads, memory)
        return {name: kin if is_statistic(name) else slow for name in uploads.own}, memory

    def _slow(self, kin: Groups, uploads: Uploads, memory: Tensors) -> tuple[Groups, Tensor]:
        """Return the W of what clients learn, and the weight[N] of each in what is pulled back to the source."""
        partial = memory["excess"] / memory["repeats"].clamp_min(TINY)
        relied = relied_on(kin)
        slow = drift(kin, relied, self.pace * (1 - partial / self.skew).clamp(0, 1))
        return slow, relied * (uploads.active if uploads.trust is None else uploads.trust)

    def step(
        self, server: Server, uploads: Uploads, mixed: Tensors, receive: Tensor, memory: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Send the remembered statistics of a client's domain, as far as it is known; the rest as mixed and pulled."""
        source = server.network.state
        learnt = {name: tensor for name, tensor in mixed.items() if not is_statistic(name)}
        if learnt:
            mixed = mixed | pull_all(learnt, source, self.pull * memory["relied"], receive)
        if "moments" in memory:
            way = find_fused(uploads, self.domains) or plain
            mixed = mixed | way.recall(source, uploads, mixed, receive, memory)
        return mixed, memory
