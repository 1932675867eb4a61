"""The floor: as many images as the method passes, no more at once than are fast, and on a GPU one graph."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench import plain_inference
from fedctta.bench.cells import SERVERS, Cell
from fedctta.bench.work import Work
from fedctta.engine import lifting


def work(adapter="bn", aggregator="fedavg", clients=3, device="cpu", rounds=2, precision="float32"):
    return Work(Cell("resnet8-w16", adapter, aggregator, clients, 2), rounds, torch.device(device), precision)


def seen_by(job):
    seen = []
    assert len(job.stream) == job.rounds  # made before counting, for making it tries the model on
    job.source.register_forward_pre_hook(lambda model, inputs: seen.append(len(inputs[0])))
    return seen


@pytest.mark.parametrize("aggregator", [*SERVERS, "kin"])
def test_as_many_images_pass_as_the_cell_says(aggregator):
    job = work("tent", aggregator)
    seen = seen_by(job)
    plain_inference.floor(job, lambda: None)
    assert sum(seen) == 2 * job.cell.clients * job.cell.passes


def test_not_too_many_pass_at_once(monkeypatch):
    monkeypatch.setattr(plain_inference, "CPU", 4)
    job = work()
    seen = seen_by(job)
    plain_inference.floor(job, lambda: None)
    assert max(seen) == 4


def test_no_lifting_is_tried_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    monkeypatch.setattr(lifting, "LONG", 1)
    monkeypatch.setattr(lifting, "_measure", None)
    plain_inference.floor(work("grad"), lambda: None)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_on_a_gpu_the_passes_are_made_once_and_replayed(precision):
    job, ticks = work(device="cuda", rounds=4, precision=precision), []
    seen = seen_by(job)
    plain_inference.floor(job, lambda: ticks.append(1))
    once = job.cell.clients * job.cell.passes
    assert len(ticks) == 4
    assert sum(seen) - once == plain_inference.WARM * seen[0]
