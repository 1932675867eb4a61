"""pFedBBN's client, against TRIBE written with modules, autograd and torch's Adam."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedctta.adapters import bbn
from fedctta.adapters.bbn import BalancedNorm
from fedctta.adapters.common.augmentation import augment
from fedctta.core.network import Network
from fedctta.core.randomness import advance
from fedctta.errors import UserError

CLASSES = 3


class Balanced(nn.Module):
    """A layer of the reference: per-class buffers, moved by whoever sets `labels`."""

    def __init__(self, norm, eta, gamma, correction):
        super().__init__()
        self.weight, self.bias = nn.Parameter(norm.weight.detach().clone()), nn.Parameter(norm.bias.detach().clone())
        self.means, self.vars = (b.repeat(CLASSES, 1) for b in (norm.running_mean, norm.running_var))
        self.mean, self.var, self.labels = norm.running_mean.clone(), norm.running_var.clone(), None
        self.eta, self.gamma, self.correction = eta, gamma, correction

    def forward(self, x):
        if self.labels is not None:
            means, variances, deltas, gaps, rates = [*self.means], [*self.vars], [], [], []
            for k in self.labels.unique().tolist():
                f = x[self.labels == k]
                n, away = len(f), f - self.means[k][:, None, None]
                m = 1 / n if n > 1 / self.eta else self.eta
                delta, q = m * away.mean((2, 3)).sum(0), away.square().mean((2, 3)).sum(0)
                means[k] = means[k] + (1 - self.gamma) * delta
                variances[k] = variances[k] + (1 - self.gamma) * (m * (q - n * variances[k]) - delta**2)
                deltas, gaps, rates = [*deltas, delta], [*gaps, m * q - delta**2], [*rates, m * n]
            share, gap, rate = sum(deltas) / len(deltas), sum(gaps) / len(gaps), sum(rates) / len(rates)
            means = torch.stack(means) + self.gamma * share
            variances = torch.stack(variances)
            variances = variances + self.gamma * (gap - rate * variances)
            mean, var = means.mean(0), variances.mean(0) + means.var(0, correction=self.correction)
            self.means, self.vars, self.mean, self.var = (t.detach() for t in (means, variances, mean, var))
        else:
            mean, var = self.mean, self.var
        scale = self.weight / (var + 1e-5).sqrt()
        return x * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class Reference:
    """TRIBE in three module objects; `paper` swaps its losses for pFedBBN's."""

    def __init__(self, module, method, eta=0.01, gamma=0.0, threshold=0.05):
        code = method.variant == "code"
        self.student = copy.deepcopy(module)
        self.student[1] = Balanced(module[1], eta, gamma, int(code))
        self.teacher, self.source = copy.deepcopy(self.student), copy.deepcopy(self.student)
        self.teacher[1].weight, self.teacher[1].bias = self.student[1].weight, self.student[1].bias
        self.optimiser = torch.optim.Adam([self.student[1].weight, self.student[1].bias], lr=method.lr)
        self.method, self.limit, self.code = method, threshold * math.log(CLASSES), code

    def adapt(self, x, view):
        model, swap = (self.student, True) if self.method.augment_teacher else (self.teacher, False)
        model[1].labels = None
        with torch.no_grad():
            labels = model(x).argmax(1)
        for each in (self.teacher, self.student, self.source):
            each[1].labels = labels
        t, s = self.teacher(view if swap else x), self.student(x if swap else view)
        anchor = self.source(x).detach()
        h = -(t.softmax(1) * t.log_softmax(1)).sum(1)
        passed = h < self.limit
        ce = F.cross_entropy(s, t.argmax(1), reduction="none")
        if self.code:
            if not passed.any():
                return passed
            loss = ce[passed].mean() + 0.5 * F.mse_loss(t, anchor, reduction="none")[passed].mean()
        else:
            loss = (ce * passed).sum() / len(x)
            loss = loss + 0.5 * (t.softmax(1) - anchor.softmax(1)).square().sum() / (len(x) * CLASSES)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return passed


def batches(count, size, seed=0):
    """Images of all brightnesses, so that they are predicted to be of several classes."""
    generator = torch.Generator().manual_seed(seed)
    brightness = 3 * torch.rand(count, size, 1, 1, 1, generator=generator)
    return brightness * torch.rand(count, size, 3, 8, 8, generator=generator)


FORMS = [
    BalancedNorm(threshold=0.9),
    BalancedNorm(threshold=0.9, variant="code"),
    BalancedNorm(threshold=0.9, augment_teacher=True, eta=0.05, gamma=0.1),
    BalancedNorm(threshold=0.9, augment_teacher=True, variant="code", eta=0.3, lr=0.02),
]


@pytest.mark.parametrize("method", FORMS, ids=range(len(FORMS)))
def test_it_is_tribe(method, tiny_module, tiny_network):
    with torch.no_grad():
        tiny_module[5].weight *= 20  # confident enough that some images pass the filter
        tiny_network.state["5.weight"].mul_(20)
    reference = Reference(tiny_module, method, method.eta or 0.01, method.gamma or 0.0, 0.9)
    client, shares, labels = method.init(tiny_network), [], set()
    for x in batches(6, 12):
        view = augment(x, client.private["key"])
        labels |= {*method.predict(tiny_network, client, x).argmax(1).tolist()}
        with torch.no_grad():
            client = method.adapt(tiny_network, client, x)
        shares.append(reference.adapt(x, view).float().mean().item())
        predicts = reference.student[1] if method.augment_teacher else reference.teacher[1]
        expected = {
            "weight": predicts.weight,
            "bias": predicts.bias,
            "running_mean": predicts.mean,
            "running_var": predicts.var,
        }
        for name, tensor in expected.items():
            torch.testing.assert_close(client.own[f"1.{name}"], tensor.detach(), atol=1e-5, rtol=1e-4)
        for who in ("teacher", "student", "source"):
            layer = getattr(reference, who)[1]
            torch.testing.assert_close(client.private[f"{who}.balanced.1.mean"], layer.means, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(client.private[f"{who}.balanced.1.var"], layer.vars, atol=1e-5, rtol=1e-4)
    assert 0 < sum(shares) / len(shares) < 1  # the filter was at work
    assert len(labels) > 1


def test_what_travels_is_four_numbers_a_channel(tiny_network):
    client = BalancedNorm().init(tiny_network)
    assert sum(t.numel() for t in client.own.values()) == 4 * 4
    assert client.own.keys() == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert client.private["teacher.balanced.1.mean"].shape == (CLASSES, 4)


def test_received_tensors_predict_and_label(tiny_network):
    """A download decides the next labels, while statistics of classes go on from the client's own."""
    method, (x,) = BalancedNorm(), batches(1, 6)
    client = method.init(tiny_network)
    sent = {name: tensor + 0.3 for name, tensor in client.own.items()}
    received = client._replace(own=sent)
    torch.testing.assert_close(method.predict(tiny_network, received, x), tiny_network(sent, x).logits)
    with torch.no_grad():
        after = method.adapt(tiny_network, received, x)
    labels = tiny_network(sent, x).logits.argmax(1)
    moved = (after.private["teacher.balanced.1.mean"] != client.private["teacher.balanced.1.mean"]).any(1)
    assert moved.tolist() == [k in labels for k in range(CLASSES)]


def test_a_single_image_will_do(tiny_network):
    method = BalancedNorm()
    method.check(tiny_network, 1)
    client = method.init(tiny_network)
    with torch.no_grad():
        for x in batches(20, 1):
            client = method.adapt(tiny_network, client, x)
            assert method.predict(tiny_network, client, x).isfinite().all()
    assert all(t.isfinite().all() for part in client for t in part.values())
    assert (client.own["1.running_var"] > 0.1).all()


def test_nothing_passes_nothing_is_learnt(tiny_network):
    """With variant=code not even Adam's moments change; statistics do."""
    method, (x,) = BalancedNorm(variant="code", threshold=0.0), batches(1, 4)
    client = method.init(tiny_network)
    with torch.no_grad():
        after = method.adapt(tiny_network, client, x)
    for name in ("step", "first.1.weight", "second.1.bias"):
        assert torch.equal(after.private[name], client.private[name])
    assert torch.equal(after.own["1.weight"], client.own["1.weight"])
    assert not torch.equal(after.own["1.running_mean"], client.own["1.running_mean"])


def test_the_view_goes_to_one_of_the_two(tiny_network, monkeypatch):
    monkeypatch.setattr(bbn, "augment", lambda x, key: torch.zeros_like(x))
    (x,) = batches(1, 4)
    for swapped, clean in ((False, "teacher"), (True, "student")):
        method = BalancedNorm(augment_teacher=swapped)
        with torch.no_grad():
            after = method.adapt(tiny_network, method.init(tiny_network), x).private
        for who in ("teacher", "student"):
            same = torch.equal(after[f"{who}.balanced.1.mean"], after["source.balanced.1.mean"])
            assert same == (who == clean)


def test_constants_follow_the_number_of_classes(tiny_network):
    many = Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 100)))
    few, method = tiny_network, BalancedNorm()
    names = ("eta", "gamma", "threshold")
    assert [method._constant(name, few) for name in names] == [0.01, 0.0, 0.05]
    assert [method._constant(name, many) for name in names] == [0.05, 0.1, 0.2]
    assert BalancedNorm(gamma=0.0)._constant("gamma", many) == 0


def test_every_batch_has_its_own_view(tiny_network):
    method, (x,) = BalancedNorm(), batches(1, 4)
    client = method.init(tiny_network)
    with torch.no_grad():
        after = method.adapt(tiny_network, client, x)
    assert after.private["key"] == advance(client.private["key"])


def test_what_cannot_work_is_refused():
    for wrong in ({"lr": -1}, {"eta": 0}, {"gamma": 1.5}, {"threshold": -0.1}, {"consistency": -1}):
        with pytest.raises(UserError, match=rf"bbn\.{next(iter(wrong))}=.* must"):
            BalancedNorm(**wrong)
    with pytest.raises(UserError, match="needs BatchNorm"):
        BalancedNorm().check(Network(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), 8)
    with pytest.raises(UserError, match=r"nn\.Linear"):
        BalancedNorm().check(Network(nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten())), 8)
