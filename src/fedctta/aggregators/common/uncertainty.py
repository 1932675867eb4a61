"""How unsure a client's model is of its batch, in one number: what UGSA asks every client for.

With p_b the predictions for image b, of B (for dense models: pixel b):

    entropy       (1/B) sum_b H(p_b)
    energy        (1/B) sum_b - log sum_k exp(z_bk)                  of the logits z
    consistency   (1/B) sum_b 1 - sum_k min(p_bk, q_bk)              q the predictions for one changed view
    dropout       (1/B) sum_b H(mean_t p_b^t)                        10 passes, features dropped with probability 0.2
    ensemble      (1/B) sum_b H(mean_m p_b^m)                        3 members, own tensors times 1 + 0.05 normal noise

Entropies are in nats; UGSA divides them by ln K unless told otherwise, which the paper does not (see `ugsa`).

The paper compares these five, with 10 passes and 3 members, and does not describe them further: the other constants are
ours, and so is the ensemble, for which nothing is trained more than once. Features are dropped before the classifier,
where no further pass through the rest of the model is needed. A view has another brightness and contrast and some
noise, and no pixel moves, so that it serves dense models too. Chance is drawn from the batch itself: the same batch
gives the same number, on every device and however clients are lifted.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.network import Network, Tensors
from fedctta.core.norms import NormRule, refreshed, stored
from fedctta.core.randomness import fork, normal, uniform

Measure = Literal["entropy", "energy", "consistency", "dropout", "ensemble"]
PASSES, DROPPED = 10, 0.2
MEMBERS, NOISE = 3, 0.05
LEAST_SPREAD = 1e-4  # below it, numbers differ by rounding only


def uncertainty(measure: Measure, network: Network, own: Tensors, x: Tensor) -> tuple[Tensor, int]:
    """Return how unsure the model with a client's own tensors is of x[B, ...], and of how many classes.

    How an adapter's model normalises is not told: with the statistics clients own if they own some, and otherwise with
    those of the batch.
    """
    rule = stored if own.keys() & network.statistics.keys() else refreshed()
    output = network(own, x, rule)
    classes = output.logits.shape[-1]
    if measure == "entropy":
        return entropy(output.logits.softmax(-1)).mean(), classes
    if measure == "energy":
        return -output.logits.logsumexp(-1).mean(), classes
    key = key_of(x)
    if measure == "consistency":
        other = network(own, view(x, key), rule).logits
        return disagreement(output.logits.softmax(-1), other.softmax(-1)).mean(), classes
    if measure == "dropout":
        return entropy(dropped_out(network, own, output.features, key)).mean(), classes
    return entropy(of_members(network, own, x, rule, key)).mean(), classes


def entropy(p: Tensor) -> Tensor:
    """H(p) = - sum_k p_k log p_k, in nats."""
    return -torch.xlogy(p, p).sum(-1)


def disagreement(p: Tensor, q: Tensor) -> Tensor:
    """1 - sum_k min(p_k, q_k): 0 for equal predictions, 1 for predictions without a class in common."""
    return 1 - torch.minimum(p, q).sum(-1)


def dropped_out(network: Network, own: Tensors, features: Tensor, key: Tensor) -> Tensor:
    """Return the mean prediction over passes with different features dropped, the others scaled up."""
    tensors = {**network.state, **own}
    weight, bias = (tensors.get(f"{network.classifier}.{kind}".removeprefix(".")) for kind in ("weight", "bias"))
    assert weight is not None
    weight = weight.flatten(1)  # a dense model's classifier may be a convolution of single pixels
    total = torch.zeros((), device=features.device)
    for number in range(PASSES):
        kept = uniform(fork(key, number), features.shape) >= DROPPED
        total = total + F.linear(features * kept / (1 - DROPPED), weight, bias).softmax(-1)
    return total / PASSES


def of_members(network: Network, own: Tensors, x: Tensor, rule: NormRule, key: Tensor) -> Tensor:
    """Return the mean prediction of members whose own tensors carry relative noise."""
    total = torch.zeros((), device=x.device)
    for number in range(MEMBERS):
        chance = fork(key, number)
        member = {
            name: tensor * (1 + NOISE * normal(fork(chance, place), tensor.shape))
            for place, (name, tensor) in enumerate(sorted(own.items()))
        }
        total = total + network(member, x, rule).logits.softmax(-1)
    return total / MEMBERS


def view(x: Tensor, key: Tensor) -> Tensor:
    """Return images x[B, C, H, W] in [0, 1] brighter or darker, with more or less contrast, and with some noise."""
    brightness, contrast = uniform(fork(key, 1), (2,), 0.7, 1.3).unbind()
    mean = x.mean((-3, -2, -1), keepdim=True)
    changed = brightness * (mean + contrast * (x - mean))
    return (changed + 0.02 * normal(fork(key, 2), x.shape)).clamp(0, 1)


def key_of(x: Tensor) -> Tensor:
    """Return a key made from images in [0, 1]: in whole numbers, so that no order of adding matters."""
    pixels = (x.detach() * 255).round().long().flatten()
    return fork((pixels * torch.arange(1, len(pixels) + 1, device=x.device)).sum(), 0)


def running_start(device: torch.device | str = "cpu") -> Tensors:
    """Return the memory of `running` before the first number."""
    return {name: torch.zeros((), device=device) for name in ("count", "mean", "squares")}


def running(sigma: Tensor, weight: Tensor, memory: Tensors) -> tuple[Tensor, Tensors]:
    """Return max(0, 1 + (sigma - m) / s), m and s being mean and spread of all numbers so far, these included.

    sigma[N] are counted by weight[N]; those of weight 0 may be anything. Where there is no spread yet, all are 1.
    """
    known = torch.where(weight > 0, sigma, 0)
    count = memory["count"] + weight.sum()
    share = weight / weight.sum().clamp_min(torch.finfo(sigma.dtype).tiny)
    now = (share * known).sum()
    apart = now - memory["mean"]
    grown = weight.sum() / count.clamp_min(torch.finfo(sigma.dtype).tiny)
    mean = memory["mean"] + grown * apart
    squares = memory["squares"] + (weight * (known - now).square()).sum() + memory["count"] * grown * apart.square()
    spread = (squares / count.clamp_min(torch.finfo(sigma.dtype).tiny)).sqrt().clamp_min(LEAST_SPREAD)
    return (1 + (known - mean) / spread).clamp_min(0), {"count": count, "mean": mean, "squares": squares}
