"""pFedBBN: clients average more with those whose BatchNorm statistics are near theirs.

With mu_l and var_l the statistics of layer l, of L:

    D_ij = (1/L) sum_l (|| mu_l^i - mu_l^j ||_2 + || var_l^i - var_l^j ||_2) / 2              (Eq. 7)
    W_ij = exp(-D_ij / T) / sum_k exp(-D_ik / T)                                              (Eq. 8)

and client i receives sum_j W_ij theta_j (Eq. 9). The paper writes W_ii = w_i = 1 / (1 + sum_{k != i} exp(-D_ik / T))
apart and shares 1 - w_i out among the others in proportion to exp(-D_ij / T). As D_ii = 0, that is the softmax above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.aggregators import Aggregator, Server, Uploads
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError
from fedctta.ranges import Positive


@dataclass(frozen=True)
class PFedBBN(Aggregator):
    """Weight peers by how near their BatchNorm statistics are (softmax of negative distance)."""

    name: ClassVar[str] = "pfedbbn"
    title: ClassVar[str] = "pFedBBN"
    temperature: Positive = 1.0

    def check(self, network: Network, own: Tensors) -> None:
        """There must be statistics to compare."""
        if not own.keys() & network.statistics.keys():
            raise UserError(
                "aggregator 'pfedbbn' compares BatchNorm statistics and this adapter's clients own none: use adapter"
                " bbn, bn, norm-ema, rotta or grad, with a model that has BatchNorm"
            )

    @property
    def only_mixes(self) -> bool:
        """W comes of statistics."""
        return True

    def collaborate(self, server: Server, uploads: Uploads, memory: Tensors) -> tuple[Tensor, Tensors]:
        """Compare statistics, turn distances into weights."""
        statistics = [uploads.own[name] for name in sorted(uploads.own.keys() & server.network.statistics.keys())]
        distance = torch.zeros(len(uploads.active), len(uploads.active), device=uploads.active.device)
        for rows in statistics:  # means and variances alike: D is the mean over all these tensors
            # By differences: exact zeros between equal clients, which the matrix-product shortcut does not give.
            apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
            distance = distance + apart / len(statistics)
        return F.softmax(-distance / self.temperature, dim=1), memory
