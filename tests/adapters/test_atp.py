"""ATP: directions and steps against autograd and by hand, and where rates come from."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedctta.adapters.atp import ATP, adaptable, direction, measured, step
from fedctta.adapters.common.learnt import learnt_path
from fedctta.core.network import Network
from fedctta.core.norms import Statistics
from fedctta.errors import UserError


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))
    return tmp_path


def test_statistics_point_from_the_batch_to_the_running_ones_by_hand():
    x = torch.tensor([1.0, 2.0, 3.0, 6.0]).reshape(4, 1, 1, 1)  # mean 3, squares 4 + 1 + 0 + 9 = 14 over 3
    old = Statistics(torch.tensor([1.0]), torch.tensor([2.0]))
    used, kept = measured("norm", x, old)
    assert used is old
    assert kept.mean.item() == 3
    assert kept.var.item() == pytest.approx(14 / 3)

    network = Network(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(1, 2)))
    network.state["0.running_mean"].fill_(1)
    network.state["0.running_var"].fill_(2)
    h = direction(network, adaptable(network), x)
    assert h["0.running_mean"].item() == pytest.approx(1 - 3)
    assert h["0.running_var"].item() == pytest.approx(2 - 14 / 3)


def test_weights_point_up_the_entropy_of_the_model_as_stored(tiny_module, tiny_network):
    x = images(5, 3, 8, 8)
    h = direction(tiny_network, adaptable(tiny_network), x)
    module = copy.deepcopy(tiny_module)
    p = module(x).softmax(-1)
    (-(p * p.log()).sum(-1)).mean().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(h[name], parameter.grad, atol=1e-6, rtol=1e-4)


def test_a_step_by_hand():
    theta = {"w": torch.tensor([1.0, 2.0]), "n.running_mean": torch.tensor([1.0]), "n.running_var": torch.tensor([1.0])}
    h = {"w": torch.tensor([10.0, -10.0]), "n.running_mean": torch.tensor([-4.0]), "n.running_var": torch.tensor([3.0])}
    new = step(theta, h, torch.tensor([0.1, 0.5, 0.5]))
    assert new["w"].tolist() == [0.0, 3.0]
    assert new["n.running_mean"].tolist() == [3.0]
    assert new["n.running_var"].tolist() == [0.0]  # -0.5, held at 0
    assert step(theta, h, torch.tensor([-0.1, 0.0, 0.0]))["w"].tolist() == [2.0, 1.0]


def test_every_batch_starts_from_the_source(tiny_network):
    adapter, first, second = ATP(rates="0.1"), images(4, 3, 8, 8), images(6, 3, 8, 8)
    start = adapter.init(tiny_network)
    alone = adapter.adapt(tiny_network, start, second)
    after = adapter.adapt(tiny_network, adapter.adapt(tiny_network, start, first), second)
    assert all(torch.equal(alone.own[name], after.own[name]) for name in alone.own)
    assert any(not torch.equal(start.own[name], alone.own[name]) for name in alone.own)


def test_online_predicts_with_the_mean_of_all_steps_from_the_source(tiny_network):
    batches = [images(4, 3, 8, 8), images(5, 3, 8, 8) ** 2, images(6, 3, 8, 8) ** 3]
    steps = ATP(rates="0.1")
    results = [steps.adapt(tiny_network, steps.init(tiny_network), x).own for x in batches]
    adapter = ATP(rates="0.1", mode="online")
    client = adapter.init(tiny_network)
    for count, x in enumerate(batches, start=1):
        client = adapter.adapt(tiny_network, client, x)
        for name, tensor in client.own.items():
            mean = torch.stack([result[name] for result in results[:count]]).mean(0)
            torch.testing.assert_close(tensor, mean, atol=1e-6, rtol=1e-5)


def test_what_is_received_is_where_the_next_batch_starts_if_asked_for(tiny_network):
    x = images(4, 3, 8, 8)
    sent = {name: tensor + 0.5 for name, tensor in adaptable(tiny_network).items()}
    for start, expected in (("received", sent), ("source", adaptable(tiny_network))):
        adapter = ATP(rates="0.1", start=start)
        client = adapter.init(tiny_network)._replace(own=sent)
        client = adapter.adapt(tiny_network, adapter.receive(tiny_network, client, x), x)
        moved = step(expected, direction(tiny_network, expected, x), torch.full((len(expected),), 0.1))
        assert all(torch.equal(client.own[name], moved[name]) for name in moved)
        assert adapter.receives == (start == "received")


def test_rates_of_a_file_go_to_the_tensors_they_name(tiny_network, tmp_path):
    names = list(adaptable(tiny_network))
    save_file({name: torch.tensor(float(k)) for k, name in enumerate(names)}, tmp_path / "r.safetensors")
    adapter = ATP(rates=str(tmp_path / "r.safetensors"))
    adapter.check(tiny_network, 1)
    assert adapter.init(tiny_network).private["rates"].tolist() == list(map(float, range(len(names))))


def test_auto_finds_the_rates_of_this_very_model(tiny_module, tiny_network, home):
    with pytest.raises(UserError, match="fedctta pretrain method=atp"):
        ATP().check(tiny_network, 10)
    path = learnt_path("atp", tiny_network)
    path.parent.mkdir()
    save_file({name: torch.tensor(0.25) for name in adaptable(tiny_network)}, path)
    assert set(ATP().init(tiny_network).private["rates"].tolist()) == {0.25}
    assert learnt_path("atp", Network(tiny_module)) == path
    with torch.no_grad():
        tiny_module[0].weight += 0.1
    assert learnt_path("atp", Network(tiny_module)) != path
    with pytest.raises(UserError, match="no rates of atp for this model"):
        ATP().check(Network(tiny_module), 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rates: rates.pop("0.weight"), "another model .0.weight"),
        (lambda rates: rates.update(more=torch.tensor(1.0)), "another model .more"),
        (lambda rates: rates.update({"0.weight": torch.zeros(2)}), "one number a tensor"),
        (lambda rates: rates.update({"0.weight": torch.tensor(torch.nan)}), "not finite in 0.weight"),
    ],
)
def test_refuses_rates_that_do_not_fit(tiny_network, tmp_path, change, message):
    rates = {name: torch.tensor(0.1) for name in adaptable(tiny_network)}
    change(rates)
    path = tmp_path / "rates.safetensors"
    save_file(rates, path)
    with pytest.raises(UserError, match=message):
        ATP(rates=str(path)).check(tiny_network, 10)


def test_refuses_other_values(tiny_network, tmp_path):
    with pytest.raises(UserError, match=r"atp.rates=inf must be finite"):
        ATP(rates="inf")
    with pytest.raises(UserError, match=r"no rates of atp for this model at nowhere.safetensors"):
        ATP(rates="nowhere.safetensors").check(tiny_network, 10)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="damaged"):
        ATP(rates=str(tmp_path / "bad.safetensors")).check(tiny_network, 10)


def test_before_the_update_theta_g_or_the_mean_so_far_predicts(tiny_network):
    x = images(4, 3, 8, 8)
    for mode in ("batch", "online"):
        adapter = ATP(rates="0.1", mode=mode)
        client = adapter.adapt(tiny_network, adapter.init(tiny_network), images(6, 3, 8, 8))
        expected = tiny_network({} if mode == "batch" else client.own, x).logits
        torch.testing.assert_close(adapter.predict_before(tiny_network, client, x), expected)
        assert (tiny_network(client.own, x).logits - tiny_network({}, x).logits).abs().max() > 1e-3
