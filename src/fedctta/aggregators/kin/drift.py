"""How what clients learn is shared: slowly, half with kin and half with all, and with a pull to the source.

Given who is kin by W, and each client's pace p_i:

    theta_i <- (1 - p_i) theta_i + p_i/2 ((W theta)_i + sum_j c_j theta_j)              c_j ~ sum of W_ij over i != j

Over 1/p rounds this averages the noise of all clients' small steps as well as averaging at once. A client without kin,
for example a liar, is left out of the mean of all, unless no client has kin. What all have learnt in common then
decays, because steps without labels reduce accuracy in the long run:

    theta_i <- theta_i + pull sum_j c_j (source - theta_j)

What a client alone has learnt, its distance from that mean, does not change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.aggregators.common.groups import Groups
from fedctta.core.network import Tensors

NONE = 1e-3  # of all rows of W together: if less than this lies on other clients, no client has kin


def relied_on(kin: Groups) -> Tensor:
    """Return c[N]: how much of all weight on others lies on each, in parts of 1; if there is none, all count alike."""
    relied = (kin.takes.sum(0) @ kin.gives + kin.alone - kin.diagonal()).clamp_min(0)
    total = relied.sum()
    return torch.where(total < NONE, 1 / len(relied), relied / total.clamp_min(NONE))


def drift(kin: Groups, relied: Tensor, pace: Tensor) -> Groups:
    """Return the W by which clients' weights, scales and shifts are mixed, each at its own pace[N]."""
    step = pace[:, None] / 2
    return Groups(
        torch.cat([kin.takes * step, step], 1),
        torch.cat([kin.gives, relied[None]]),
        torch.addcmul(1 - pace, kin.alone, step[:, 0]),
    )


def pull_all(tensors: Tensors, source: Tensors, weight: Tensor, active: Tensor) -> Tensors:
    """Pull all that clients learn to the source; vectors, many and short, are laid side by side and pulled at once."""
    vectors = [name for name in tensors if source[name].dim() == 1]
    pulled = {n: pull_to_source(t, source[n], weight, active) for n, t in tensors.items() if n not in vectors}
    if vectors:
        together, home = (torch.cat([part[name] for name in vectors], -1) for part in (tensors, source))
        sizes = [len(source[name]) for name in vectors]
        parts = torch.split(pull_to_source(together, home, weight, active), sizes, 1)
        pulled |= zip(vectors, parts, strict=True)
    return pulled


def pull_to_source(tensor: Tensor, source: Tensor, weight: Tensor, active: Tensor) -> Tensor:
    """Return theta_i + sum_j weight_j (source - theta_j) of tensor[N, ...] for those who are active."""
    back = torch.sub(weight.sum() * source, torch.tensordot(weight, tensor, 1))
    return torch.addcmul(tensor, active.to(tensor.dtype).view(-1, *[1] * source.dim()), back)
