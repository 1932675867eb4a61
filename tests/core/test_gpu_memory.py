"""What a run takes of a GPU's memory, it gives back."""

from __future__ import annotations

import gc

import pytest
import torch

from fedctta.core import gpu_memory
from fedctta.core.gpu_memory import capture_graph, release_memory, until_run_ends

MB = 2**20


def test_results_are_remembered_until_the_run_ends():
    made = []

    @until_run_ends(maxsize=1)
    def make(shape):
        made.append(shape)
        return object()

    first = make(1)
    assert make(1) is first
    release_memory(torch.device("cpu"))
    assert make(1) is not first
    assert made == [1, 1]


def test_on_a_gpu_what_waits_for_the_collector_goes_before_the_cache_is_emptied(monkeypatch):
    order = []
    monkeypatch.setattr(gc, "collect", lambda: order.append("collected"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("emptied"))
    release_memory(torch.device("cpu"))
    assert order == []
    release_memory(torch.device("cuda"))
    assert order == ["collected", "emptied"]


def test_workspaces_are_forgotten_before_and_after_a_capture(monkeypatch):
    order = []
    monkeypatch.setattr(gpu_memory, "_forget_workspaces", lambda: order.append("forgotten"))

    class Capture:
        def __init__(self, graph, pool, stream):
            order.append(graph)

        def __enter__(self):
            order.append("begun")

        def __exit__(self, *_):
            order.append("ended")

    monkeypatch.setattr(torch.cuda, "graph", Capture)
    with pytest.raises(ValueError, match="no"), capture_graph("graph"):
        raise ValueError("no")
    assert order == ["forgotten", "graph", "begun", "ended", "forgotten"]


@pytest.mark.gpu
def test_a_graph_that_multiplies_matrices_within_its_memory_leaves_nothing():
    device = torch.device("cuda")
    (torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)).sum().item()
    release_memory(device)
    before = torch.cuda.memory_reserved(device)
    for _ in range(4):
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        with capture_graph(graph, side):
            large = torch.ones(512, MB, device=device)
            del large  # its room is free for what cuBLAS needs
            small = torch.ones(64, 64, device=device)
            product = small @ small
        graph.replay()
        assert product[0, 0].item() == 64
        del graph, small, product
        release_memory(device)
        assert torch.cuda.memory_reserved(device) - before < 64 * MB
