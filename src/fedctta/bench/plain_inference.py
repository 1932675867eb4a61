"""Plain inference: the source model in evaluation mode on as many images as the method passes through the network.

On a GPU the floor is one CUDA graph of these passes, in the precision and memory order of our rounds: to launch the
kernels of a small model one by one takes several times as long as to run them, and our rounds are graphs, too. Its
images are on the device before it begins.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fedctta.bench.work import Work
from fedctta.core.clients import CUDA
from fedctta.core.gpu_memory import capture_graph
from fedctta.core.outputs import pick_logits
from fedctta.engine.cuda_graphs import NotCapturable

Tick = Callable[[], None]
CPU = 100  # images at once that are fast on a CPU
WARM = 3  # passes before a capture, in which libraries initialise


def floor(work: Work, tick: Tick) -> None:
    """Way a: captured as a CUDA graph on a GPU; on a CPU, plain passes."""
    if work.device.type == "cpu":
        launched(work, tick)
        return
    model, x = _prepare(work), work.read(0)[0].flatten(0, 1)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(work.device)  # type: ignore[no-untyped-call]
    with torch.inference_mode(), _arithmetic(work):
        side.wait_stream(torch.cuda.current_stream(work.device))
        with torch.cuda.stream(side):
            for _ in range(WARM):
                _infer(model, next(_parts(work, x)))
        torch.cuda.current_stream(work.device).wait_stream(side)
        try:
            with capture_graph(graph, side):
                for part in _parts(work, x):
                    _infer(model, part)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.synchronize(work.device)
            raise NotCapturable(f"plain inference cannot be captured: {str(error).splitlines()[0]}") from error
    for _ in range(work.rounds):
        graph.replay()
        tick()


def launched(work: Work, tick: Tick) -> None:
    """Way a': kernel by kernel, on the images of every round."""
    model = _prepare(work)
    for t in range(work.rounds):
        x = work.read(t)[0].flatten(0, 1)  # the first time it makes the stream, and for that tries the model
        with torch.inference_mode(), _arithmetic(work):
            for part in _parts(work, x):
                _infer(model, part)
        tick()


def _prepare(work: Work) -> nn.Module:
    model = copy.deepcopy(work.source).to(work.device)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _infer(model: nn.Module, x: Tensor) -> Tensor:
    return pick_logits(model(x)).argmax(1)


def _parts(work: Work, x: Tensor) -> Iterator[Tensor]:
    """Yield as many images as the cell says, again and again those of the round, no more than are fast at once."""
    at_once = CUDA if work.device.type == "cuda" else CPU
    left = work.cell.clients * work.cell.passes
    while left > 0:
        yield from torch.split(x[:left], at_once)
        left -= len(x)


def _arithmetic(work: Work) -> AbstractContextManager[object]:
    """Return what computes in bfloat16, where that is asked for; weights are not cached, as in our rounds."""
    if work.precision != "bf16":
        return nullcontext()
    return torch.autocast(work.device.type, torch.bfloat16, cache_enabled=False)
