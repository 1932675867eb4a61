"""CoTTA: a step against torch's own modules, the choice of views, and forgetting."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedctta.adapters import cotta
from fedctta.adapters.common.augmentation import augment, view_keys
from fedctta.adapters.cotta import CoTTA, restored
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.core.norms import refreshed
from fedctta.core.randomness import fork, keys
from fedctta.core.tensors import under
from fedctta.errors import UserError

KEY = keys(2, 1)[0]


@pytest.fixture
def x():
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(4))


def shifted(network, by):
    """Return the network's parameters, moved a little: a model that has adapted already."""
    generator = torch.Generator().manual_seed(5)
    return {n: t + by * torch.randn(t.shape, generator=generator) for n, t in network.parameters.items()}


def client_of(adapter, network, teacher):
    return Client(teacher, {**adapter.init(network).private, "key": KEY})


def test_steps_are_those_of_plain_modules(tiny_module, tiny_network, x):
    adapter = CoTTA(lr=1e-2, confidence=0.0, momentum=0.9, restore=0.0)
    client = client_of(adapter, tiny_network, shifted(tiny_network, 0.3))
    student, teacher = copy.deepcopy(tiny_module).train(), copy.deepcopy(tiny_module).train()
    teacher.load_state_dict(client.own, strict=False)
    optimiser = torch.optim.Adam(student.parameters(), lr=1e-2)
    for _ in range(2):
        with torch.no_grad():
            client = adapter.adapt(tiny_network, client, x)
        nn.functional.cross_entropy(student(x), teacher(x).softmax(-1).detach()).backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.copy_(0.9 * slow + 0.1 * fast)
    for prefix, module in (("", teacher), ("student.", student)):
        for name, tensor in module.named_parameters():
            if name != "0.bias":  # before BatchNorm: no gradient but rounding, which Adam scales up
                found = {**client.own, **client.private}[prefix + name]
                torch.testing.assert_close(found, tensor.detach(), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), teacher(x).detach(), atol=1e-4, rtol=1e-4)


def test_views_are_averaged_where_the_source_is_unsure(tiny_network, x):
    teacher = shifted(tiny_network, 0.1)
    sure = tiny_network({}, x, refreshed()).logits.softmax(-1).amax(-1).mean().item()
    plain = tiny_network(teacher, x, refreshed()).logits
    each = [tiny_network(teacher, augment(x, key), refreshed()).logits for key in view_keys(fork(KEY, 1), 5)]
    adapters = [CoTTA(confidence=sure + by, views=5) for by in (-0.01, 0.01)]
    below, above = (each.predict_before(tiny_network, client_of(each, tiny_network, teacher), x) for each in adapters)
    torch.testing.assert_close(below, plain)
    torch.testing.assert_close(above, torch.stack(each).mean(0))
    assert not torch.allclose(plain, above, atol=1e-3)


def test_one_client_that_is_sure_draws_no_views(tiny_network, x, monkeypatch):
    adapter = CoTTA(confidence=0.01)
    monkeypatch.setattr(cotta, "augment", lambda *_: pytest.fail("nobody asked for views"))
    adapter.adapt(tiny_network, client_of(adapter, tiny_network, tiny_network.parameters), x)


def test_the_teacher_is_what_was_downloaded(tiny_network, x):
    adapter, received = CoTTA(views=2), shifted(tiny_network, 0.2)
    client = client_of(adapter, tiny_network, tiny_network.parameters)
    client = client._replace(own=received)
    expected = tiny_network(received, x, refreshed()).logits
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), expected)
    after = adapter.adapt(tiny_network, client, x)
    for name, tensor in after.own.items():
        assert (tensor - received[name]).abs().max() < 2e-3 * (1 + received[name].abs().max())


def test_only_parameters_travel(tiny_network):
    client = CoTTA().init(tiny_network)
    assert client.own.keys() == tiny_network.parameters.keys()
    assert under("student", client.private).keys() == client.own.keys()


def test_elements_go_back_to_the_source_by_chance():
    source, weights = (
        {"a": torch.zeros(300, 100), "b": torch.zeros(50)},
        {"a": torch.ones(300, 100), "b": torch.ones(50)},
    )
    one = restored(weights, source, KEY, 0.01)["a"]
    assert set(one.unique().tolist()) == {0.0, 1.0}
    assert abs((one == 0).float().mean() - 0.01) < 0.002
    assert not torch.equal(one, restored(weights, source, fork(KEY, 9), 0.01)["a"])
    assert all((t == 0).all() for t in restored(weights, source, KEY, 1.0).values())
    assert all((t == 1).all() for t in restored(weights, source, KEY, 0.0).values())


def test_the_student_is_restored_after_the_teacher_has_followed(tiny_network, x):
    adapter = CoTTA(lr=1e-2, confidence=0.0, momentum=0.5, restore=1.0)
    teacher = shifted(tiny_network, 0.2)
    client = adapter.adapt(tiny_network, client_of(adapter, tiny_network, teacher), x)
    for name, source in tiny_network.parameters.items():
        assert torch.equal(client.private[f"student.{name}"], source)
    followed = torch.lerp(teacher["5.weight"], tiny_network.state["5.weight"], 0.5)
    assert not torch.allclose(client.own["5.weight"], followed, atol=1e-3)  # a student that had learnt


def test_chance_moves_on(tiny_network, x):
    client = client_of(CoTTA(views=1), tiny_network, tiny_network.parameters)
    assert CoTTA(views=1).adapt(tiny_network, client, x).private["key"] != KEY


def test_refuses_what_cannot_work(tiny_network):
    with pytest.raises(UserError, match="batch=2 or more"):
        CoTTA().check(tiny_network, 1)
    CoTTA().check(Network(nn.Linear(3, 2)), 1)
    for parameters in ({"lr": -1.0}, {"confidence": 1.2}, {"views": 0}, {"momentum": -0.1}, {"restore": 2.0}):
        with pytest.raises(UserError, match=f"cotta.{next(iter(parameters))}="):
            CoTTA(**parameters)
