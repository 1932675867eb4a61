"""FedTSA's TS-Block: attention over time, then over clients, trained anew in every round. Equations as in the paper.

X[N, T, D] holds the last T slots' indicators of N clients, `known[N, T]` which of them arrived; a slot that did not
is zero in X, no key for anybody and no part of the loss, so it changes nothing for the others.

    A^(T) = Q K^T / sqrt(D),  X^TA  = softmax(A^(T)) X         per client, over its slots     (Eq. 9-11)
    A^(S) = Q K^T / sqrt(D),  X^TSA = softmax(A^(S)) X^TA      per slot, over the clients     (Eq. 12-14)
    L     = ||X^TSA - X|| + lambda ||X^TSA - X^TSA'||          X^TSA': the masked pass        (Eq. 18)

Q and K are linear layers with bias, at first the identity; V is the identity and stays so. All layers live in one
tensor, the block[D + 1, 4 D]: columns temporal Q, K, spatial Q, K; the last row is the biases. Since rows of an
attention sum to one, X^TA W + b = softmax(A^(T)) (X W + b): X is projected once for all layers and both passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedctta.core.randomness import uniform


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


class Pairs(NamedTuple):
    """Something about all pairs of slots of a client [N, T, T] and all pairs of clients in a slot [T, N, N].

    A spatial mask of one slot [1, N, N] stands for all slots.
    """

    temporal: Tensor
    spatial: Tensor


DrawNoise = Callable[[int], Pairs]
"""The uniform numbers by which an epoch's masks are drawn."""

MANY = 2**26  # numbers that are drawn at once, of as many epochs as that makes


class Attended(NamedTuple):
    """What the last slot attends to: the clients in it, W[N, N], and every client's own slots up to it [N, T]."""

    clients: Tensor
    slots: Tensor


class Attention(NamedTuple):
    """One pass through the block: softmaxed scores over time and over clients, X^TA[T, N, D] and X^TSA[T, N, D]."""

    scores: Pairs
    temporal: Tensor
    output: Tensor


def identity_block(x: Tensor, temporal: bool) -> Tensor:
    """All layers before training: identity weights and zero biases."""
    dim = x.shape[-1]
    return F.pad(torch.eye(dim, device=x.device, dtype=x.dtype).repeat(1, 4 if temporal else 2), (0, 0, 0, 1))


def visible(known: Tensor) -> Pairs:
    """Which keys a query may look at: those that arrived, and always itself (so that no softmax is empty)."""
    clients, slots = (torch.eye(n, dtype=torch.bool, device=known.device) for n in known.shape)
    return Pairs(known[:, None, :] | slots, known.T[:, None, :] | clients)


def attention(layers: Tensor, seen: Tensor, keep: Tensor | None = None, hard: bool = False) -> Tensor:
    """softmax(Q K^T / sqrt(D)) over the keys seen (Eq. 10, 13); `keep` masks scores: to -inf (hard) or to 0."""
    q, k = layers.chunk(2, -1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if keep is not None and hard:
        seen = seen & keep
    elif keep is not None:
        scores = scores * keep  # Eq. 16-17
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def ts_block(x: Tensor, projected: Tensor, seen: Pairs, keep: Pairs | None = None, hard: bool = False) -> Attention:
    """Attend over time, then over clients (Eq. 9-14; with masks `keep`, Eq. 16-17)."""
    *over_time, layers = projected.chunk(projected.shape[-1] // (2 * x.shape[-1]), -1)
    a = torch.eye(x.shape[1], device=x.device, dtype=x.dtype).expand(len(x), -1, -1)
    if over_time:
        a = attention(over_time[0], seen.temporal, keep and keep.temporal, hard)
        x, layers = a @ x, a @ layers
    x = x.transpose(0, 1)
    s = attention(layers.transpose(0, 1), seen.spatial, keep and keep.spatial, hard)
    return Attention(Pairs(a, s), x, s @ x)


def bernoulli_masks(scores: Pairs, noise: Pairs) -> Pairs:
    """Keep every pair with the probability of its attention, and every client's tie to itself (the paper).

    The paper starts the spatial mask from the graph of Eq. 15, keeps its edges with probability a_ij and adds edges
    it lacks with probability a_ij: either way a pair is kept with a_ij, so the graph itself drops out.
    """
    loops = torch.eye(scores.spatial.shape[-1], dtype=torch.bool, device=scores.spatial.device)
    return Pairs(noise.temporal < scores.temporal, (noise.spatial < scores.spatial) | loops)


def sized_masks(raw: Attention, noise: Pairs, known: Tensor) -> Pairs:
    """Masks of fixed size (the published code).

    Over time, 3/4 of a client's pairs are drawn by 1 - a and dropped, the diagonal excepted. Over clients, edges of
    the last slot's graph, cos(X^TA_i, X^TA_j) > mean: 4/5 of them drawn by 1 - a are dropped, and of the G absent ones
    int(G (1 - 0.8)) drawn by a are added; that mask serves all slots. As a float, 1 - 0.8 is just below 1/5, so that
    this is one less than G / 5 wherever 5 divides G: (G - 1) // 5.
    """
    a, s = raw.scores.temporal, raw.scores.spatial[-1]
    clients, slots = (torch.eye(n, dtype=torch.bool, device=known.device) for n in known.shape)
    pairs = known[:, :, None] & known[:, None, :]
    dropped = sample(1 - a, pairs, 3 * pairs.sum((-2, -1)) // 4, noise.temporal)

    present = known[:, -1, None] & known[:, -1]
    unit = F.normalize(raw.temporal[-1], dim=-1)
    cosine = torch.where(present, unit @ unit.T, 0)
    near = cosine > cosine.sum() / present.sum()
    edges, gaps = near & present & ~clients, ~near & present & ~clients
    lost = sample(1 - s, edges, 4 * edges.sum() // 5, noise.spatial[0])
    added = sample(s, gaps, (gaps.sum() - 1) // 5, noise.spatial[1])  # without gaps it is -1, which draws none
    return Pairs(~dropped | slots, ((edges & ~lost) | added | clients)[None])


def sample(weight: Tensor, among: Tensor, count: Tensor, noise: Tensor) -> Tensor:
    """Draw `count` of the entries `among` a matrix without replacement, with probability proportional to `weight`.

    An exponential race: entry e finishes at Exp(1) / weight_e, and the first `count` are drawn.
    """
    time = -torch.log1p(-noise) / weight.clamp_min(1e-30)
    order = time.masked_fill(~among, torch.inf).flatten(-2).argsort(-1)
    first = torch.arange(order.shape[-1], device=order.device) < count[..., None]
    return torch.zeros_like(first).scatter(-1, order, first).view_as(among)


def distance(a: Tensor, b: Tensor, known: Tensor, squared: bool) -> Tensor:
    """Return the mean square or the Frobenius norm of (a - b)[T, N, D] over the slots that arrived."""
    difference = (a - b) * known.T[..., None]
    if squared:
        return difference.square().sum() / (known.sum() * a.shape[-1])
    norm: Tensor = torch.linalg.vector_norm(difference)
    return norm


def objective(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Attended]:
    """Return the loss (Eq. 18) and the softmaxed A^(S) and A^(T) of the last slot (Eq. 10, 13)."""
    projected = x @ block[:-1] + block[-1]
    raw = ts_block(x, projected, seen)
    loss = distance(raw.output, x.transpose(0, 1), known, how.code)
    if noise is not None:
        with torch.no_grad():
            keep = sized_masks(raw, noise, known) if how.code else bernoulli_masks(raw.scores, noise)
        masked = ts_block(x, projected, seen, keep, how.code)
        loss = loss + how.lam * distance(raw.output, masked.output, known, how.code)
    return loss, Attended(raw.scores.spatial[-1].detach(), raw.scores.temporal[:, -1].detach())


def noise_of(key: Tensor, clients: int, slots: int, how: Training) -> DrawNoise | None:
    """Return the noise of one round's masks, or with key[R] of R rounds, an axis in front; None if there are no masks.

    It is drawn where the key is, for many epochs at once as long as they are small.
    """
    if not how.lam:
        return None
    epochs = epochs_at_once(key.numel() * numbers(clients, slots, how), how)

    @lru_cache(maxsize=1)
    def part(first: int) -> Pairs:
        def draw(one: Tensor) -> tuple[Tensor, Tensor]:
            return draw_noise(one, clients, slots, how, range(how.epochs)[first : first + epochs])

        return Pairs(*(torch.func.vmap(draw) if key.ndim else draw)(key))

    def noise(epoch: int) -> Pairs:
        place = epoch % epochs
        return Pairs(*(drawn.select(key.ndim, place) for drawn in part(epoch - place)))

    return noise


def epochs_at_once(each: int, how: Training) -> int:
    """Return for how many epochs noise is drawn at once, given the numbers per epoch."""
    return min(how.epochs, max(1, MANY // each))


def numbers(clients: int, slots: int, how: Training) -> int:
    """How many numbers an epoch's masks are drawn by."""
    return sum(map(math.prod, _shapes(clients, slots, how)))


def draw_noise(key: Tensor, clients: int, slots: int, how: Training, epochs: range) -> Pairs:
    """Return the noise of some epochs, an axis in front. A number depends on its epoch, not on what else is drawn."""
    begin, parts = 0, []
    for shape in _shapes(clients, slots, how):
        size = math.prod(shape)
        parts.append(uniform(key + (begin + epochs.start * size), (len(epochs), *shape)))
        begin += how.epochs * size
    return Pairs(*parts)


def _shapes(clients: int, slots: int, how: Training) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return (clients, slots, slots), (2 if how.code else slots, clients, clients)


def train(x: Tensor, known: Tensor, noise: DrawNoise | None, how: Training) -> Attended:
    """Train a fresh block with Adam and return what the epoch with the lowest loss attends to.

    With an axis more in front of everything, as many blocks are trained at once, each for itself.
    """
    many = x.shape[:-3]
    seen = torch.func.vmap(visible)(known) if many else visible(known)
    learn = learn_at_once if many else learn_alone
    block = identity_block(x, how.temporal)
    block = block.expand(*many, *block.shape).clone()
    mean, square = torch.zeros_like(block), torch.zeros_like(block)
    lowest = x.new_full(many, torch.inf)
    best = Attended(*(x.new_zeros(*x.shape[:-2], size) for size in x.shape[-3:-1]))
    for epoch in range(how.epochs):
        gradient, loss, now = learn(block, x, known, seen, noise and noise(epoch), how)
        lower = (loss < lowest)[..., None, None]
        best = Attended(*(torch.where(lower, new, old) for new, old in zip(now, best, strict=True)))
        lowest = torch.minimum(lowest, loss)
        adam(block, gradient, mean, square, epoch + 1, how.lr)
    return best


@torch.enable_grad()
def learn_alone(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Tensor, Attended]:
    """Return the gradient of one block, its loss and what it attends to."""
    block = block.detach().requires_grad_()
    loss, now = objective(block, x, known, seen, noise, how)
    return torch.autograd.grad(loss, block)[0], loss.detach(), now


def learn_at_once(
    block: Tensor, x: Tensor, known: Tensor, seen: Pairs, noise: Pairs | None, how: Training
) -> tuple[Tensor, Tensor, Attended]:
    """Return the same of many blocks."""
    of = torch.func.grad_and_value(partial(objective, how=how), has_aux=True)
    learn = torch.func.vmap(of, in_dims=(0, 0, 0, 0, None if noise is None else 0))
    gradient, (loss, now) = learn(block, x, known, seen, noise)
    return gradient, loss, now


@torch.no_grad()
def adam(block: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, step: int, lr: float) -> None:
    """Take one step of Adam (betas 0.9 and 0.999), in place."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    # The clamp is far below the 1e-8 added next; roots of subnormal numbers take a CPU ten times longer.
    root = square.clamp_min(torch.finfo(square.dtype).tiny).sqrt_()
    scale = root.div_(math.sqrt(1 - 0.999**step)).add_(1e-8)
    block.addcdiv_(mean, scale, value=-lr / (1 - 0.9**step))


def attend(x: Tensor, known: Tensor, key: Tensor, how: Training) -> Attended:
    """Train on one window; on a GPU as one CUDA graph, for its many small kernels take longer to launch than to run.

    Where the whole round is being captured, the training becomes part of its graph.
    """
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return train(x, known, noise_of(key, len(known), known.shape[1], how), how)
    return captured(x.shape, x.dtype, x.device, how)(x, known, key)


@lru_cache(maxsize=2)
def captured(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, how: Training
) -> Callable[[Tensor, Tensor, Tensor], Attended]:
    """Capture the whole training for one shape and return the function that replays it."""
    x, known = torch.zeros(shape, dtype=dtype, device=device), torch.ones(shape[:2], dtype=torch.bool, device=device)
    key = torch.zeros((), dtype=torch.int64, device=device)

    def trained(epochs: int) -> Attended:
        short = how._replace(epochs=epochs)
        return train(x, known, noise_of(key, len(known), known.shape[1], short), short)

    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # libraries set themselves up on first use, which a capture does not allow
        trained(min(2, how.epochs))
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        best = trained(how.epochs)

    def replay(new_x: Tensor, new_known: Tensor, new_key: Tensor) -> Attended:
        for held, new in ((x, new_x), (known, new_known), (key, new_key)):
            held.copy_(new)
        graph.replay()
        return Attended(*(tensor.clone() for tensor in best))

    return replay
