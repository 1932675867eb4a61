"""The collaboration matrix W and what is done with it: W mixes models, and is restricted to clients that take part.

    theta'_i = sum_j W_ij theta_j

W is one matrix for the whole model, or one for each of its tensors; dense, with few weights per row, or via groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from fedctta.aggregators.common.groups import Groups
from fedctta.aggregators.common.neighbours import Neighbours
from fedctta.core.memory_layout import row_by_row
from fedctta.core.network import Tensors
from fedctta.core.tensors import constant

# W[N, N], the same with few weights per row, or the same via groups
Weights = Tensor | Neighbours | Groups
# One for the whole model, or one for each of its tensors by name
Mixing = Weights | Mapping[str, Weights]


def mix(weights: Mixing, own: Tensors) -> Tensors:
    """Give client i the model sum_j W_ij theta_j. Vectors, many and short, are concatenated and mixed at once."""
    vectors = _mix_vectors(weights, {name: tensor for name, tensor in own.items() if tensor.dim() == 2})
    wide = {name: of_tensor(weights, name) for name in own if name not in vectors}
    rows = {id(mine): find_common_row(mine) for mine in {id(mine): mine for mine in wide.values()}.values()}
    return {
        name: vectors[name] if name in vectors else _mixed(wide[name], rows[id(wide[name])], tensor)
        for name, tensor in own.items()
    }


def _mix_vectors(weights: Mixing, own: Tensors) -> Tensors:
    """Mix tensors[N, d]: those with the same W side by side, those of one size with Ws of their own in one batch."""
    alike: dict[tuple[int, torch.dtype], list[str]] = {}
    for name, tensor in own.items():
        alike.setdefault((id(of_tensor(weights, name)), tensor.dtype), []).append(name)
    lonely: dict[tuple[torch.Size, torch.dtype], list[str]] = {}
    for (name,) in (names for names in alike.values() if len(names) == 1):
        if isinstance(of_tensor(weights, name), Tensor):
            lonely.setdefault((own[name].shape, own[name].dtype), []).append(name)
    mixed: Tensors = {}
    for names in lonely.values():
        if len(names) > 1:
            each_own = torch.stack([cast(Tensor, of_tensor(weights, name)) for name in names])
            mixed |= zip(names, torch.bmm(each_own, torch.stack([own[name] for name in names])).unbind(), strict=True)
    for names in alike.values():
        if names[0] not in mixed:
            together = of_tensor(weights, names[0]) @ torch.cat([own[name] for name in names], 1)
            mixed |= zip(names, torch.split(together, [own[name].shape[1] for name in names], 1), strict=True)
    return mixed


def _mixed(weights: Weights, row: Tensor | None, tensor: Tensor) -> Tensor:
    """Return W tensor; of a `row` that all rows of W are, one model is computed and stored, which all receive."""
    if not tensor.numel():
        return tensor
    return _multiply(weights, tensor) if row is None else _multiply(row, tensor).expand_as(tensor)


def _multiply(weights: Weights, tensor: Tensor) -> Tensor:
    if not row_by_row(tensor):
        return (weights @ tensor.reshape(len(tensor), -1)).view(-1, *tensor.shape[1:])
    # Rows in their memory order, so that neither they nor the result have to be copied.
    flat = tensor.as_strided((len(tensor), tensor[0].numel()), (tensor.stride(0), 1))
    mixed = weights @ flat
    return mixed.as_strided((len(mixed), *tensor.shape[1:]), tensor.stride())


def find_common_row(weights: Weights) -> Tensor | None:
    """Return the row[1, N] that all rows of W are, if they are; a GPU is not asked: it would have to be waited for."""
    if isinstance(weights, Groups):
        alike = not weights.alone.is_cuda and len(weights.alone) > 1 and not weights.alone.any()
        return weights.takes[:1] @ weights.gives if alike and _are_equal(weights.takes) else None
    if not isinstance(weights, Tensor) or weights.is_cuda or len(weights) < 2:
        return None
    return weights[:1] if _are_equal(weights) else None


def _are_equal(rows: Tensor) -> bool:
    return torch.equal(rows, rows[:1].expand_as(rows))


def of_tensor(weights: Mixing, name: str) -> Weights:
    """Return the W that mixes one of the model's tensors."""
    return weights[name] if isinstance(weights, Mapping) else weights


def overall(weights: Mixing, own: Tensors) -> Tensor:
    """Return one W for the whole model: the mean of those of its tensors, each counted by its size.

    With few weights per row it is a sparse tensor.
    """
    if not isinstance(weights, Mapping):
        return matrix(weights)
    sizes: dict[int, int] = {}
    for name, w in weights.items():
        sizes[id(w)] = sizes.get(id(w), 0) + own[name][0].numel()
    stack = torch.stack([matrix(w) for w in {id(w): w for w in weights.values()}.values()])
    shares = constant(tuple(size / sum(sizes.values()) for size in sizes.values()), stack)
    return (shares[:, None, None] * stack).sum(0)


def matrix(weights: Weights) -> Tensor:
    """Return W as a tensor[N, N]."""
    return weights if isinstance(weights, Tensor) else weights.matrix()


def restrict(weights: Mixing, receive: Tensor, trust: Tensor | None = None) -> Mixing:
    """Weight the columns of W by `trust`[N], renormalise its rows, and let clients not in `receive` keep theirs.

    Without `trust`, the clients that receive are those that sent. For a softmax over W this then equals the softmax
    over the present clients. A row without any weight becomes the row of the identity.
    """
    trust = receive if trust is None else trust
    if isinstance(weights, Mapping) and all(isinstance(w, Tensor) for w in weights.values()):
        return _restrict_at_once(cast(Mapping[str, Tensor], weights), receive, trust)
    return each(weights, lambda w: _dense(w, receive, trust) if isinstance(w, Tensor) else w.restricted(receive, trust))


def each(weights: Mixing, change: Callable[[Weights], Weights]) -> Mixing:
    """Change the W of the model, or those of its tensors: only once where several tensors share one."""
    if not isinstance(weights, Mapping):
        return change(weights)
    changed = {key: change(w) for key, w in {id(w): w for w in weights.values()}.items()}
    return {name: changed[id(w)] for name, w in weights.items()}


def _restrict_at_once(weights: Mapping[str, Tensor], receive: Tensor, trust: Tensor) -> Mapping[str, Tensor]:
    """Restrict the Ws of all tensors as one stack: each is small, and a GPU takes longer to begin than to compute."""
    distinct = {id(w): w for w in weights.values()}
    together = _dense(torch.stack(list(distinct.values())), receive, trust).unbind()
    restricted = dict(zip(distinct, together, strict=True))
    return {name: restricted[id(w)] for name, w in weights.items()}


def _dense(weights: Tensor, receive: Tensor, trust: Tensor) -> Tensor:
    """Restrict W[..., N, N]."""
    present = weights * trust
    total = present.sum(-1, keepdim=True)
    alone = ~receive[:, None] | (total <= 0)
    return torch.where(alone, torch.eye(len(receive), device=weights.device), present / total.clamp_min(1e-12))
