"""The training of blocks on a GPU as CUDA graphs: one round's as one graph, that of many rounds epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fedctta.aggregators.fedtsa.attention import Pairs
from fedctta.aggregators.fedtsa.fused_training import can_fuse_training, draw_fused, train_epoch_fused
from fedctta.aggregators.fedtsa.noise import draw_noise, prepare_noise
from fedctta.aggregators.fedtsa.training import Attended, Training, begin_training, train, train_epoch
from fedctta.core.gpu_memory import capture_graph, until_run_ends


def attend(x: Tensor, known: Tensor, key: Tensor, how: Training) -> Attended:
    """Train on one window; on a GPU as one CUDA graph, for its many small kernels take longer to launch than to run.

    Where the whole round is being captured, the training becomes part of its graph.
    """
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return train_fast(x, known, key, how)
    return capture(x.shape, x.dtype, x.device, how)(x, known, key)


def train_fast(x: Tensor, known: Tensor, key: Tensor, how: Training) -> Attended:
    """Train on windows with the noise of their keys, by kernels where they may serve."""
    noise = prepare_noise(key, x.shape[-3], x.shape[-2], how)
    return train(x, known, noise, how, train_epoch_fused if can_fuse_training(x, how) else train_epoch)


@until_run_ends(maxsize=2)
def capture(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, how: Training
) -> Callable[[Tensor, Tensor, Tensor], Attended]:
    """Capture the whole training for one shape and return the function that replays it."""
    x, known = torch.zeros(shape, dtype=dtype, device=device), torch.ones(shape[:2], dtype=torch.bool, device=device)
    key = torch.zeros((), dtype=torch.int64, device=device)

    def trained(epochs: int) -> Attended:
        return train_fast(x, known, key, how._replace(epochs=epochs))

    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # libraries set themselves up on first use, which a capture does not allow
        trained(min(2, how.epochs))
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with capture_graph(graph):
        best = trained(how.epochs)

    def replay(new_x: Tensor, new_known: Tensor, new_key: Tensor) -> Attended:
        for held, new in ((x, new_x), (known, new_known), (key, new_key)):
            held.copy_(new)
        graph.replay()
        return Attended(*(tensor.clone() for tensor in best))

    return replay


def train_parts(x: Tensor, known: Tensor, keys: Tensor, at_once: int, how: Training) -> Attended:
    """Train many blocks, `at_once` at a time, on a GPU by replaying one epoch, the number of which is on the device."""
    count, (clients, slots) = len(x), x.shape[1:3]
    if not x.is_cuda:
        parts = zip(*(torch.split(part, at_once) for part in (x, known, keys)), strict=True)
        trained = [train_fast(part, there, key, how) for part, there, key in parts]
        return Attended(*(torch.cat(each) for each in zip(*trained, strict=True)))
    fused = can_fuse_training(x, how)
    held, there, key = (part[:at_once].clone(memory_format=torch.contiguous_format) for part in (x, known, keys))
    epoch = torch.zeros(1, dtype=torch.int64, device=x.device)

    def learn() -> None:
        noise = None
        if how.lam and fused:
            noise = draw_fused(key, clients, slots, how, epoch)
        elif how.lam:
            drawn = torch.func.vmap(lambda one: draw_noise(one, clients, slots, how, epoch[0], 1))(key)
            noise = Pairs(*(numbers[:, 0] for numbers in drawn))
        (train_epoch_fused if fused else train_epoch)(progress, held, there, noise, epoch, how)
        epoch.add_(1)

    progress = begin_training(held, there, how)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):  # libraries set themselves up on first use, which a capture does not allow
        learn()
    torch.cuda.current_stream(x.device).wait_stream(side)
    with capture_graph(graph):
        learn()
    results = Attended(*(held_.new_empty(count, *held_.shape[1:]) for held_ in progress.best))
    for first in range(0, count, at_once):
        some = slice(min(first, count - at_once), min(first, count - at_once) + at_once)  # the last begins earlier
        for place, part in ((held, x), (there, known), (key, keys)):
            place.copy_(part[some])
        for place, fresh in zip(tree_leaves(progress), tree_leaves(begin_training(held, there, how)), strict=True):
            place.copy_(fresh)
        epoch.zero_()
        for _ in range(how.epochs):
            graph.replay()
        for whole, part in zip(results, progress.best, strict=True):
            whole[some] = part
    return results
