"""The norm of pFedBBN's plain client; that the client does what the adapter does is tested with the other clients."""

from __future__ import annotations

import torch
from torch import nn

from fedctta.bench.balanced_client import BalancedClient, ThreefoldNorm
from fedctta.models import build


def test_only_the_network_at_work_moves_its_statistics():
    norm = ThreefoldNorm(nn.BatchNorm2d(3).eval(), classes=2)
    x = 2 + torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    before = {name: tensor.clone() for name, tensor in norm.named_buffers()}
    norm.who, norm.labels = "student", torch.eye(2)[[0, 1, 0, 1]]
    norm(x)
    moved = {name for name, tensor in norm.named_buffers() if not torch.equal(tensor, before[name])}
    assert moved == {"student_mean", "student_var"}
    norm.who = "teacher"
    norm(x)
    moved = {name for name, tensor in norm.named_buffers() if not torch.equal(tensor, before[name])}
    assert moved >= {"teacher_mean", "teacher_var", "norm.running_mean", "norm.running_var"}


def test_without_labels_it_normalises_as_stored():
    layer = nn.BatchNorm2d(3).eval()
    x = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ThreefoldNorm(layer, classes=2)(x), layer(x))


def test_norms_are_replaced_and_their_own_tensors_travel():
    client = BalancedClient(build("resnet8-w16").eval())
    assert len(client.layers) == 9
    kinds = {name.rpartition(".")[2] for name in client.upload()}
    assert kinds == {"weight", "bias", "running_mean", "running_var"}
