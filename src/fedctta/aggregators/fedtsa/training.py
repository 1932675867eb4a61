"""The training of FedTSA's block: a fresh one in every round, and the epoch with the lowest loss counts.

    L = ||X^TSA - X|| + lambda ||X^TSA - X^TSA'||              X^TSA': the masked pass        (Eq. 18)

Steps are Adam's, over one tensor that holds all layers of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedctta.aggregators.fedtsa.attention import Pairs, find_visible, make_identity_block, run_block
from fedctta.aggregators.fedtsa.masks import draw_bernoulli_masks, draw_sized_masks


class Training(NamedTuple):
    """How a block is trained. `lam` = 0 leaves the masked pass out, `temporal` = False the attention over time.

    `code`: the published code's masks of fixed size that exclude keys, and mean squared errors; otherwise the paper's
    Bernoulli masks multiplied with the scores, and norms.
    """

    epochs: int
    lr: float
    lam: float
    code: bool
    temporal: bool = True


class Attended(NamedTuple):
    """What the last slot attends to: the clients in it, W[N, N], and every client's own slots up to it [N, T]."""

    clients: Tensor
    slots: Tensor


DrawNoise = Callable[[int], Pairs]
"""The uniform numbers by which an epoch's masks are drawn."""


class Progress(NamedTuple):
    """A training under way, changed in place: block, Adam's moments and steps, the lowest loss and what it attends to.

    `steps`[epochs, 2] is Adam's, see `step_adam`; `seen` says which keys a query may look at.
    """

    block: Tensor
    mean: Tensor
    square: Tensor
    steps: Tensor
    lowest: Tensor
    best: Attended
    seen: Pairs


def begin_training(x: Tensor, known: Tensor, how: Training) -> Progress:
    """Return a training before its first epoch."""
    many = x.shape[:-3]
    seen = torch.func.vmap(find_visible)(known) if many else find_visible(known)
    block = make_identity_block(x, how.temporal)
    block = block.expand(*many, *block.shape).clone()
    best = Attended(*(x.new_zeros(*x.shape[:-2], size) for size in x.shape[-3:-1]))
    steps = adam_steps(how.epochs, how.lr, x)
    moments = torch.zeros_like(block), torch.zeros_like(block)
    return Progress(block, *moments, steps, x.new_full(many, torch.inf), best, seen)


TrainEpoch = Callable[[Progress, Tensor, Tensor, Pairs | None, int | Tensor, Training], None]


def train_epoch(
    progress: Progress, x: Tensor, known: Tensor, noise: Pairs | None, epoch: int | Tensor, how: Training
) -> None:
    """Train for one epoch; its number may be on the device, [1], so that all epochs are the same kernels."""
    block, mean, square, steps, lowest, best, seen = progress
    learn = learn_at_once if x.dim() > 3 else learn_alone
    gradient, loss, now = learn(block, x, known, seen, noise, how)
    keep_best(lowest, best, loss, now)
    step_adam(
        block, gradient, mean, square, steps[epoch] if isinstance(epoch, int) else steps.index_select(0, epoch)[0]
    )


def train(
    x: Tensor, known: Tensor, noise: DrawNoise | None, how: Training, train_epoch: TrainEpoch = train_epoch
) -> Attended:
    """Train a fresh block with Adam and return what the epoch with the lowest loss attends to.

    With an axis more in front of everything, as many blocks are trained at once, each for itself.
    """
    progress = begin_training(x, known, how)
    for epoch in range(how.epochs):
        train_epoch(progress, x, known, noise and noise(epoch), epoch, how)
    return progress.best


def keep_best(lowest: Tensor, best: Attended, loss: Tensor, now: Attended) -> None:
    """Where the loss is lower than before, remember it and what is attended to now, in place."""
    lower = (loss < lowest)[..., None, None]
    for held, new in zip(best, now, strict=True):
        held.copy_(torch.where(lower, new, held))
    torch.minimum(lowest, loss, out=lowest)


@torch.enable_grad()
def learn_alone(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Tensor, Attended]:
    """Return the gradient of one block, its loss and what it attends to."""
    block = block.detach().requires_grad_()
    loss, now = compute_loss(block, x, known, seen, noise, how)
    return torch.autograd.grad(loss, block)[0], loss.detach(), now


def learn_at_once(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Tensor, Attended]:
    """Return the same of many blocks."""
    of = torch.func.grad_and_value(partial(compute_loss, how=how), has_aux=True)
    learn = torch.func.vmap(of, in_dims=(0, 0, 0, 0, None if noise is None else 0))
    gradient, (loss, now) = learn(block, x, known, seen, noise)
    return gradient, loss, now


def compute_loss(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Attended]:
    """Return the loss (Eq. 18) and the softmaxed A^(S) and A^(T) of the last slot (Eq. 10, 13)."""
    projected = x @ block[:-1] + block[-1]
    raw = run_block(x, projected, seen)
    loss = measure_distance(raw.output, x.transpose(0, 1), known, how.code)
    if noise is not None:
        with torch.no_grad():
            keep = draw_sized_masks(raw, noise, known) if how.code else draw_bernoulli_masks(raw.scores, noise)
        masked = run_block(x, projected, seen, keep, how.code)
        loss = loss + how.lam * measure_distance(raw.output, masked.output, known, how.code)
    return loss, Attended(raw.scores.spatial[-1].detach(), raw.scores.temporal[:, -1].detach())


def measure_distance(a: Tensor, b: Tensor, known: Tensor, squared: bool) -> Tensor:
    """Return the mean square or the Frobenius norm of (a - b)[T, N, D] over the slots that arrived."""
    difference = (a - b) * known.T[..., None]
    if squared:
        return difference.square().sum() / (known.sum() * a.shape[-1])
    norm: Tensor = torch.linalg.vector_norm(difference)
    return norm


def adam_steps(epochs: int, lr: float, like: Tensor) -> Tensor:
    """Return the factors [epochs, 2] of Adam's root and of its 1e-8 in every step, computed where `like` is.

    With r = sqrt(1 - 0.999^t) and s = lr / (1 - 0.9^t), a step is -s m / (root / r + 1e-8) = m / (root a + b).
    """
    step = torch.arange(1, epochs + 1, device=like.device, dtype=torch.float64)
    outer = -(1 - 0.9**step) / lr if lr else torch.full_like(step, -torch.inf)
    return torch.stack([outer / (1 - 0.999**step).sqrt(), 1e-8 * outer], 1).to(like.dtype)


@torch.no_grad()
def step_adam(block: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: Tensor) -> None:
    """Take one step of Adam (betas 0.9 and 0.999), in place; step[2] is that of `adam_steps`."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    # The clamp is far below the 1e-8 added next; roots of subnormal numbers take a CPU ten times longer.
    root = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt_()
    block.addcdiv_(mean, root.mul_(step[0]).add_(step[1]))
