"""The training of a round's block, on a GPU as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedctta.aggregators.fedtsa.noise import prepare_noise
from fedctta.aggregators.fedtsa.training import Attended, Training, train
from fedctta.core.gpu_memory import capture_graph, until_run_ends


def attend(x: Tensor, known: Tensor, key: Tensor, how: Training) -> Attended:
    """Train on one window; on a GPU as one CUDA graph, for its many small kernels take longer to launch than to run.

    Where the whole round is being captured, the training becomes part of its graph.
    """
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        return train(x, known, prepare_noise(key, len(known), known.shape[1], how), how)
    return capture(x.shape, x.dtype, x.device, how)(x, known, key)


@until_run_ends(maxsize=2)
def capture(
    shape: torch.Size, dtype: torch.dtype, device: torch.device, how: Training
) -> Callable[[Tensor, Tensor, Tensor], Attended]:
    """Capture the whole training for one shape and return the function that replays it."""
    x, known = torch.zeros(shape, dtype=dtype, device=device), torch.ones(shape[:2], dtype=torch.bool, device=device)
    key = torch.zeros((), dtype=torch.int64, device=device)

    def trained(epochs: int) -> Attended:
        short = how._replace(epochs=epochs)
        return train(x, known, prepare_noise(key, len(known), known.shape[1], short), short)

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
