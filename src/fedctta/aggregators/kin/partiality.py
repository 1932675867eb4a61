"""Whether clients see other classes than their kin, estimated from predictions that need not be right.

The frozen source model predicts the classes of a batch of B images, p_1 ... p_B. The client sends the mean prediction
(its guess), and how likely two of its images have the same class:

    g_i = (1/B) sum_b p_b            r_i = mean over b != c of <p_b, p_c>

With the weights W of who is kin, the server compares that with one image of the client and one of its kin:

    e_i = sum_j W_ij (r_i - <g_i, g_j>),   o_i = sum_j W_ij r_i                     over j != i

If both see the same classes, the two products have the same mean, even if predictions are wrong: they are equally wrong
on both sides. If a client sees some classes more often than its kin do, e_i is above 0. Summed over rounds, e_i / o_i
is near 0 for a client with the same classes as its kin, and near 1 for a client with classes that none of its kin sees,
for any number of classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.groups import Groups
from fedctta.core.network import Network, Tensors

LATELY = 0.98  # factor per round by which older comparisons lose weight


def guesses(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return g[K] and r of a batch; where every pixel has a class, an image's guess is the mean over its pixels."""
    logits = network({}, x).logits
    each = logits.softmax(-1).view(len(x), -1, logits.shape[-1]).mean(1)
    mean, images = each.mean(0), len(x)
    same = torch.sub((images * mean).square().sum(), each.square().sum())
    return mean, same / max(1, images * (images - 1))


def excess(kin: Groups, mean: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """Return e[N] and o[N]."""
    takes, gives, alone = kin
    itself = kin.diagonal() - alone
    own = (takes.sum(1) - itself) * same
    met = torch.addcmul(takes @ (gives @ mean), itself[:, None], mean, value=-1)
    return own - (mean * met).sum(1), own


def remember_excess(kin: Groups, uploads: Uploads, memory: Tensors) -> Tensors:
    """Return the sums over the last rounds of e_i and o_i; absent clients keep theirs."""
    mean, same = (uploads.signals[name].nan_to_num(0, 0, 0).clamp(0, 1) for name in ("guess", "same"))
    return {
        name: torch.where(uploads.active, torch.add(new, memory[name], alpha=LATELY), memory[name])
        for name, new in zip(("excess", "repeats"), excess(kin, mean, same), strict=True)
    }
