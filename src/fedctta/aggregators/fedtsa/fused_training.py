"""One epoch of many of FedTSA's blocks on a GPU in few passes over memory, by kernels.

The gradient is written by hand: the two large products, X W and X^T dP, are torch's, the rest is in `attention_kernels`
and `training_kernels`. Where there are no kernels, or a window is too large for them, `training` computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.aggregators.fedtsa.attention import Attention, Pairs
from fedctta.aggregators.fedtsa.masks import draw_sized_masks
from fedctta.aggregators.fedtsa.noise import list_shapes
from fedctta.aggregators.fedtsa.training import Attended, Progress, Training, keep_best
from fedctta.core.gpu_kernels import can_fuse

MOST = 64  # clients, and slots: all pairs of them lie in one tile


def can_fuse_training(x: Tensor, how: Training) -> bool:
    """Whether kernels may train on windows x[..., N, T, D]."""
    return how.temporal and max(x.shape[-3:-1]) <= MOST and can_fuse(x)


def draw_fused(keys: Tensor, clients: int, slots: int, how: Training, epoch: Tensor) -> Pairs:
    """Return the noise of an epoch[1] for keys[R], as `draw_noise` draws it."""
    from fedctta.aggregators.fedtsa import training_kernels

    begin, parts = 0, []
    for shape in list_shapes(clients, slots, how):
        size = shape.numel()
        parts.append(training_kernels.draw_uniform(keys, epoch, begin, size).view(-1, *shape))
        begin += how.epochs * size
    return Pairs(*parts)


def train_epoch_fused(
    progress: Progress, x: Tensor, known: Tensor, noise: Pairs | None, epoch: int | Tensor, how: Training
) -> None:
    """Train for one epoch, as `train_epoch` does."""
    from fedctta.aggregators.fedtsa import training_kernels

    when = torch.full((1,), epoch, device=x.device) if isinstance(epoch, int) else epoch
    blocks = progress.block.view(-1, *progress.block.shape[-2:])
    many = None if noise is None else Pairs(*(pairs.reshape(-1, *pairs.shape[-3:]) for pairs in noise))
    gradient, loss, now = learn_fused(
        blocks, x.reshape(-1, *x.shape[-3:]), known.reshape(-1, *known.shape[-2:]), many, how
    )
    shaped = (new.view_as(held) for new, held in zip(now, progress.best, strict=True))
    keep_best(progress.lowest, progress.best, loss.view_as(progress.lowest), Attended(*shaped))
    training_kernels.step_adam(progress.block, gradient, progress.mean, progress.square, progress.steps, when)


@torch.no_grad()
def learn_fused(
    block: Tensor, x: Tensor, known: Tensor, noise: Pairs | None, how: Training
) -> tuple[Tensor, Tensor, Attended]:
    """Return the gradients of many blocks, their losses and what they attend to, as `learn_at_once` does."""
    from fedctta.aggregators.fedtsa import attention_kernels as kernels

    x, there = x.contiguous(), known.contiguous().view(torch.uint8)
    many, clients, slots, dim = x.shape
    rows = x.view(many, clients * slots, dim)
    projected = torch.bmm(rows, block[:, :-1])

    def prepare() -> kernels.Pass:
        return kernels.Pass(
            x.new_empty(many, clients, slots, slots),
            x.new_empty(many, slots, clients, clients),
            x.new_empty(many, slots, clients, 3 * dim),
            x.new_empty(many, slots),
        )

    raw = prepare()
    masked = raw if noise is None else prepare()
    uniform = (x, x) if noise is None else (noise.temporal.contiguous(), noise.spatial.contiguous())
    keep = kernels.Kept(*(torch.empty_like(pairs, dtype=torch.uint8) for pairs in (raw.temporal, raw.spatial)))
    mode = kernels.RAW if noise is None or how.code else kernels.BERNOULLI
    kernels.forward(mode, block, projected, x, there, uniform, keep, raw, masked)
    if noise is not None and how.code:
        seen = Attention(Pairs(raw.temporal, raw.spatial), raw.mixed[..., :dim], raw.mixed)
        drawn = torch.func.vmap(draw_sized_masks)(seen, noise, known)
        keep, mode = kernels.Kept(*(pairs.contiguous().view(torch.uint8) for pairs in drawn)), kernels.GIVEN
        kernels.forward(mode, block, projected, x, there, uniform, keep, raw, masked)
    loss, factors = measure(raw.squares, masked.squares, known, dim, 0.0 if noise is None else how.lam, how.code)
    of_projected = kernels.backward(mode, block, projected, x, there, keep, raw, masked, factors)
    gradient = torch.empty_like(block)
    torch.bmm(rows.mT, of_projected, out=gradient[:, :-1])
    torch.sum(of_projected, 1, out=gradient[:, -1])
    return gradient, loss, Attended(raw.spatial[:, -1], raw.temporal[:, :, -1])


def measure(
    squares: Tensor, masked: Tensor, known: Tensor, dim: int, lam: float, squared: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return losses[R] of the squares[R, T] of both differences, and by what the gradient multiplies either.

    The gradient of a norm ||d|| is d / ||d||, at 0 it is 0; that of a mean square is 2 d / n.
    """
    totals = torch.stack([squares, masked]).sum(-1)
    if squared:
        count = known.sum((1, 2)) * dim
        terms, factors = totals / count, (2 / count).expand_as(totals)
    else:
        terms = totals.sqrt()
        factors = terms.reciprocal().masked_fill_(terms == 0, 0)
    return terms[0] + lam * terms[1], (factors[0], lam * factors[1])
