"""Kin's round operation by operation: the reference, and the way wherever it is not `fused`."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.kin.belief import TINY, hear, update_domains
from fedctta.aggregators.kin.statistics_memory import blend_rows, grow, remember
from fedctta.aggregators.kin.statistics_memory import recall as recall
from fedctta.core.network import Network, Tensors


def update_all(
    network: Network, uploads: Uploads, memory: Tensors, *, hazard: float, tolerance: float, strange: float,
    horizon: float, clip: float = 0,
) -> tuple[Groups, Tensors]:  # fmt: skip
    """Update beliefs, start a new domain if needed, update all that is remembered, and return who is kin."""
    said = hear(uploads, tolerance)
    belief, replaced = update_domains(said, memory, hazard=hazard, tolerance=tolerance, strange=strange)
    rows = said.heard[:, None]
    gone = F.pad(replaced, (0, 1), value=False)  # no client is in a domain that was replaced
    weight = torch.where(replaced, 0, memory["weight"])
    memory = memory | {"belief": torch.where(rows | gone, belief, memory["belief"])}
    known = belief[:, :-1] * rows
    kin = Groups(known, (known / known.sum(0).clamp_min(TINY)).T, 1 - known.sum(1))

    heed = known * said.trust[:, None]
    memory["weight"], part, kept = grow(weight, heed, horizon)
    memory["look"] = blend_rows(memory["look"], kept, part, said.look)
    memory["spread"] = blend_rows(memory["spread"], kept, part, said.spread)
    if "fresh" in uploads.signals:
        memory |= remember(network.state, uploads, heed, replaced, memory, horizon, clip)
    return kin, memory
