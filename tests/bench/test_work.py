"""The work of a cell is what `fedctta run` would do."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedctta.adapters import adapters
from fedctta.bench.cells import Cell
from fedctta.bench.work import Work, find_refusal


def make_work(rounds=2):
    return Work(Cell("resnet8-w16", "tent", "fedctta", 3, 2), rounds, torch.device("cpu"))


def test_ours_is_what_run_would_assemble():
    federation = make_work().federation()
    assert federation.adapter == adapters.create("tent")
    assert federation.server.clients == 3
    assert "vmap" in federation.server.lift.__name__


def test_rounds_without_reviews_are_measured():
    work = Work(Cell("resnet8-w16", "recall", "recall", 3, 2), 2, torch.device("cpu"))
    assert work.federation().adapter == adapters.create("recall").without_reviews()


def test_images_are_dealt_once():
    work = make_work()
    work.federation()
    assert work.stream is work.stream


def test_clients_are_stored_as_asked():
    work = Work(Cell("resnet8-w16", "grad", "fedavg", 3, 2), 2, torch.device("cpu"), storage="bf16")
    clients = work.federation().start().clients
    assert {t.dtype for t in clients.own.values() if t.dim() > 2} == {torch.bfloat16}
    assert "storage=bf16 has no effect" in find_refusal(replace(work.cell, adapter="tent"), work.device, "bf16")


def test_every_round_has_images_and_labels():
    work = make_work(rounds=4)
    assert len(work.stream) == 4
    x, labels = work.read(3)
    assert (x.shape, labels.shape) == ((3, 2, 3, 32, 32), (3, 2))
    assert not torch.equal(x, work.read(2)[0])


def test_what_does_not_fit_is_said():
    cpu = torch.device("cpu")
    assert find_refusal(Cell("resnet8-w16", "bn", "kin", 2, 2), cpu) is None
    assert "needs BatchNorm" in find_refusal(Cell("vit-w48", "bn", "fedavg", 2, 2), cpu)
