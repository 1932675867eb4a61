"""RoTTA, against the same method image by image with modules, autograd and torch's Adam."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedctta.adapters import rotta
from fedctta.adapters.common.memory import EMPTY, Memory, empty, offered
from fedctta.adapters.rotta import RoTTA
from fedctta.core.clients import stack
from fedctta.core.network import Network
from fedctta.errors import UserError

CLASSES = 3


class Robust(nn.Module):
    """RBN: in training, statistics move and normalise at once, with gradients through the batch's part."""

    def __init__(self, norm, alpha):
        super().__init__()
        self.weight, self.bias = nn.Parameter(norm.weight.detach().clone()), nn.Parameter(norm.bias.detach().clone())
        self.mean, self.var, self.alpha = norm.running_mean.clone(), norm.running_var.clone(), alpha

    def forward(self, x):
        mean, var = self.mean, self.var
        if self.training:
            mean = (1 - self.alpha) * mean + self.alpha * x.mean((0, 2, 3))
            var = (1 - self.alpha) * var + self.alpha * x.var((0, 2, 3), correction=0)
            self.mean, self.var = mean.detach(), var.detach()
        scale = self.weight / (var + 1e-5).sqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class Reference:
    def __init__(self, module, method):
        self.student = copy.deepcopy(module)
        self.student[1] = Robust(module[1], method.alpha)
        self.teacher = copy.deepcopy(self.student)
        self.optimiser = torch.optim.Adam([self.student[1].weight, self.student[1].bias], lr=method.lr)
        self.memory, self.seen, self.method = empty((3, 8, 8), method.places), 0, method

    def adapt(self, x):
        with torch.no_grad():
            p = self.teacher.eval()(x).softmax(1)
        entropy = -(p * p.log()).sum(1)
        for i in range(len(x)):
            one, stop = slice(i, i + 1), torch.tensor([1])
            kept = offered(self.memory, x[one], p[one].argmax(1), entropy[one], CLASSES, stop)
            self.memory = Memory(*(part[0] for part in kept))
            self.seen += 1
            if self.seen % self.method.places == 0:
                self.update()

    def update(self):
        taken = self.memory.label != EMPTY
        images, age = self.memory.images[taken], self.memory.age[taken] / self.method.places
        with torch.no_grad():
            target = self.teacher.train()(images).softmax(1)
        weight = torch.exp(-age) / (1 + torch.exp(-age))
        output = self.student.train()(dimmed(images, None))
        loss = (-(target * output.log_softmax(1)).sum(1) * weight).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(self.teacher[1].parameters(), self.student[1].parameters(), strict=True):
                slow.lerp_(fast, self.method.nu)


def dimmed(x, key):
    """Stand in for an augmentation that does not depend on how many images there are."""
    return 0.7 * x + 0.1


def batches(*sizes):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(size, 3, 8, 8, generator=generator) for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [(5, 5, 5, 5, 5), (20, 20, 20), (8, 16, 8), (1,) * 20, (3, 40)],
    ids=["few", "many", "even", "one", "mixed"],
)
def test_it_is_the_method_image_by_image(sizes, tiny_module, tiny_network, monkeypatch):
    monkeypatch.setattr(rotta, "augment", dimmed)
    method = RoTTA(places=8, side=8, nu=0.1, lr=0.01)
    reference, client = Reference(tiny_module, method), method.init(tiny_network)
    for x in batches(*sizes):
        with torch.no_grad():
            client = method.adapt(tiny_network, client, x)
            logits = method.predict(tiny_network, client, x)
        reference.adapt(x)
        expected = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}
        for name, attribute in expected.items():
            for tensor, layer in (
                (client.own[f"1.{name}"], reference.teacher[1]),
                (client.private[f"student.1.{name}"], reference.student[1]),
            ):
                torch.testing.assert_close(tensor, getattr(layer, attribute).detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(logits, reference.teacher.eval()(x).detach(), atol=1e-4, rtol=1e-4)
        for part, other in zip(_memory(client), reference.memory, strict=True):
            torch.testing.assert_close(part, other)
    assert client.private["step"] == sum(sizes) // 8
    assert client.private["seen"] == sum(sizes)


def _memory(client):
    return Memory(*(client.private[f"memory.{part}"] for part in Memory._fields))


def test_updates_are_due_by_each_clients_own_count(tiny_network):
    """Three clients that have seen different numbers of images, in one stack."""
    method = RoTTA(places=8, side=8)
    clients = stack(method.init(tiny_network), 3)
    clients = clients._replace(private={**clients.private, "seen": torch.tensor([0, 3, 7])})
    (x,) = batches(3 * 5)
    with torch.no_grad():
        after = torch.func.vmap(lambda c, x: method.adapt(tiny_network, c, x))(clients, x.view(3, 5, 3, 8, 8))
    assert after.private["step"].tolist() == [0, 1, 1]
    same = (after.own["1.weight"] == clients.own["1.weight"]).all(1)
    assert same.tolist() == [True, False, False]
    assert after.private["seen"].tolist() == [5, 8, 12]


def test_the_memory_never_grows(tiny_network):
    method = RoTTA(places=4, side=8)
    client = method.init(tiny_network)
    start = {name: tensor.shape for name, tensor in client.private.items()}
    x = torch.rand(1000, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for batch in x:
            client = method.adapt(tiny_network, client, batch)
    assert {name: tensor.shape for name, tensor in client.private.items()} == start
    assert client.private["step"] == 250
    assert all(t.isfinite().all() for part in client for t in part.values())


def test_the_real_augmentation_is_used_and_differs_from_update_to_update(tiny_network):
    method = RoTTA(places=4, side=8, nu=1.0)
    (x,) = batches(4)
    client = method.init(tiny_network)
    other = client._replace(private={**client.private, "key": torch.tensor(7)})
    with torch.no_grad():
        after, differs = (method.adapt(tiny_network, each, x) for each in (client, other))
    assert not torch.equal(after.own["1.weight"], differs.own["1.weight"])
    assert after.private["key"] != client.private["key"]


def test_what_cannot_work_is_refused(tiny_network):
    for wrong in ({"lr": -1}, {"alpha": 2}, {"nu": -0.1}, {"places": 0}, {"side": 0}):
        with pytest.raises(UserError, match=rf"rotta\.{next(iter(wrong))}=.* must"):
            RoTTA(**wrong)
    with pytest.raises(UserError, match=r"rotta\.side=32 does not fit"):
        RoTTA().adapt(tiny_network, RoTTA().init(tiny_network), *batches(2))
    with pytest.raises(UserError, match="needs BatchNorm"):
        RoTTA().check(Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), 8)


def test_before_the_update_the_teacher_predicts_with_its_stored_statistics(tiny_network):
    adapter = RoTTA(places=4, side=8, nu=0.5)
    first, x = batches(6, 6)
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), first)
    torch.testing.assert_close(adapter.predict_before(tiny_network, client, x), tiny_network(client.own, x).logits)
