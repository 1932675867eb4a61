"""Models as vectors: what aggregators that compare clients share.

A stack of models is a dictionary of tensors[N, ...], read as N long vectors. Inner products and distances are summed
tensor by tensor, so the vectors are never laid out whole, and by name, so that rounding does not depend on the order
in which a checkpoint gives them back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fedctta.aggregators import Uploads
from fedctta.core.clients import Client
from fedctta.core.network import Network, Tensors
from fedctta.errors import UserError

Receivers = Literal["all", "last"]


def gram(models: Tensors, active: Tensor, origin: Tensors | None = None) -> Tensor:
    """G_ij = (theta_i - o_i) . (theta_j - o_j); `origin` is one model, or one for each client, or zero."""
    total = torch.zeros(len(active), len(active), device=active.device)
    for name, tensor in sorted(models.items()):
        rows = (tensor if origin is None else tensor - origin[name]).reshape(len(active), -1)
        total = total + rows @ rows.T
    return total


def cosines(inner: Tensor) -> Tensor:
    """Cosines from inner products. A zero vector is like another zero vector (1) and unlike all others (0)."""
    norm = inner.diagonal().sqrt()
    zero = norm == 0
    cosine = inner / torch.where(zero, 1, norm)[:, None] / torch.where(zero, 1, norm)
    return torch.where(zero[:, None] & zero, 1, cosine).clamp(-1, 1)


def squared_distances(models: Tensors, active: Tensor) -> Tensor:
    """|| theta_i - theta_j ||^2, by differences: exact zeros for equal models, which inner products do not give."""
    total = torch.zeros(len(active), len(active), device=active.device)
    for _, tensor in sorted(models.items()):
        rows = tensor.reshape(len(active), -1)
        total = total + torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def owns_weights(network: Network, own: Tensors) -> bool:
    """Whether clients own more than BatchNorm statistics."""
    return not own.keys() <= network.statistics.keys()


def source_feature(network: Network, client: Client, x: Tensor) -> Tensors:
    """The signal of published code: the source model's mean feature on the batch, if the client owns weights.

    One that owns statistics only sends nothing more: they are a fingerprint of its batch already.
    """
    return {"feature": network({}, x).features.flatten(1).mean(0)} if owns_weights(network, client.own) else {}


def fingerprint(uploads: Uploads) -> Tensors:
    """What published code compares clients by: the signal of `source_feature`, or else their statistics."""
    return uploads.signals or uploads.own


def check_features(method: str, network: Network, own: Tensors) -> None:
    """Refuse a model without features where `source_feature` needs them."""
    if owns_weights(network, own) and not network.has_features:
        raise UserError(
            f"{method}.variant=code compares features and needs a model that ends in nn.Linear: use"
            f" {method}.variant=paper"
        )


def kept_from(receivers: Receivers, weights: Tensor) -> Tensor:
    """W with receivers=last: all clients except the last keep their own model.

    A loop variable used twice makes the published TTA-bn code of FedAMP and pFedGraph do this.
    """
    if receivers == "all":
        return weights
    own = torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    return torch.cat([own[:-1], weights[-1:]])


def average_all(models: Tensors, weight: Tensor, otherwise: Tensors) -> Tensors:
    """sum_j weight_j theta_j / sum_j weight_j of every theta[N, ...]; `otherwise` if there is no weight.

    Vectors, many and short, are averaged as one.
    """
    total = weight.sum()
    share, counts, some = weight / torch.where(total > 0, total, 1), weight > 0, total > 0
    return _vectors_as_one(models, otherwise, lambda stack, instead: _sum_up(stack, share, counts, some, instead))


def _sum_up(stack: Tensor, share: Tensor, counts: Tensor, some: Tensor, otherwise: Tensor) -> Tensor:
    rows = torch.where(counts.view(-1, *[1] * (stack.dim() - 1)), stack, 0)  # 0 times what is no number is none either
    return torch.where(some, torch.tensordot(share.to(stack.dtype), rows, 1), otherwise)


def for_active_all(active: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """`for_active` of every tensor: one model `new` for active clients, rows of `old`[N, ...] for absent ones."""
    return _vectors_as_one(old, new, lambda stack, one: for_active(active, one, stack))


def _vectors_as_one(stacks: Tensors, models: Tensors, function: Callable[[Tensor, Tensor], Tensor]) -> Tensors:
    """Apply a function of stack[N, ...] and one model's tensor[...], once for all vectors laid side by side."""
    vectors = [name for name, tensor in stacks.items() if tensor.dim() == 2]
    results: Tensors = {}
    if vectors:
        sizes = [stacks[name].shape[1] for name in vectors]
        whole = function(
            torch.cat([stacks[name] for name in vectors], 1), torch.cat([models[name] for name in vectors])
        )
        results |= zip(vectors, torch.split(whole, sizes, -1), strict=True)
    return {name: results[name] if name in results else function(t, models[name]) for name, t in stacks.items()}


def counted(uploads: Uploads) -> Tensor:
    """What every upload[N] counts: its trust, which is 1 for all that are active unless told otherwise."""
    return uploads.active.float() if uploads.trust is None else uploads.trust


def for_active(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Rows `new` for active clients, `old` for absent ones."""
    return torch.where(active.view(-1, *[1] * (old.dim() - 1)), new, old)
