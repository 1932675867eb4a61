"""TTA-grad against torch's own optimisers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.grad import EntropyGradient, mean_entropy, pseudo_label_loss
from fedctta.core.network import Network
from fedctta.errors import UserError


def test_entropy_by_hand():
    logits = torch.tensor([[0.0, 0.0], [torch.log(torch.tensor(3.0)), 0.0]])
    first = torch.log(torch.tensor(2.0))
    second = -(0.75 * torch.log(torch.tensor(0.75)) + 0.25 * torch.log(torch.tensor(0.25)))
    torch.testing.assert_close(mean_entropy(logits), (first + second) / 2)


def test_pseudo_labels_are_the_arg_max():
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pseudo_label_loss(logits), F.cross_entropy(logits, logits.argmax(1)))


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_steps_equal_those_of_torch(variant, tiny_module):
    tiny_module[0].bias = None  # BatchNorm cancels it: its gradient is rounding noise, which Adam would blow up
    tiny_network = Network(tiny_module)
    lr, batches = 1e-2, torch.rand(3, 6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = copy.deepcopy(tiny_module).train()
    adam = variant == "code"
    optimiser = torch.optim.Adam(model.parameters(), lr) if adam else torch.optim.SGD(model.parameters(), lr)
    adapter = EntropyGradient(lr=lr, variant=variant)
    client = adapter.init(tiny_network)
    for x in batches:
        client = adapter.adapt(tiny_network, client, x)
        loss = (pseudo_label_loss if adam else mean_entropy)(model(x))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    state = model.state_dict()
    for name, tensor in client.own.items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(adapter.predict(tiny_network, client, x), model.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_step_lowers_the_entropy(tiny_network):
    adapter, x = EntropyGradient(lr=0.1), torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    client = adapter.init(tiny_network)
    before, after = [], []
    for _ in range(20):
        before.append(mean_entropy(adapter.predict(tiny_network, client, x)))
        client = adapter.adapt(tiny_network, client, x)
        after.append(mean_entropy(adapter.predict(tiny_network, client, x)))
    assert after[-1] < before[0]


def test_moments_stay_on_the_client(tiny_network):
    client = EntropyGradient(variant="code").init(tiny_network)
    assert client.private
    assert not client.private.keys() & client.own.keys()


def test_refuses_a_batch_of_one(tiny_network):
    with pytest.raises(UserError, match="batch=2 or more"):
        EntropyGradient().check(tiny_network, 1)


def batch(seed=0):
    return torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_the_proximal_term_changes_nothing_in_the_first_step_after_a_download(tiny_network):
    plain, held = EntropyGradient(lr=0.1), EntropyGradient(lr=0.1, prox=1.0)
    one = plain.adapt(tiny_network, plain.init(tiny_network), batch())
    two = held.adapt(tiny_network, held.init(tiny_network), batch())
    assert all(torch.equal(one.own[name], two.own[name]) for name in one.own)
    one, two = plain.adapt(tiny_network, one, batch(1)), held.adapt(tiny_network, two, batch(1))
    assert not torch.equal(one.own["0.weight"], two.own["0.weight"])


@pytest.mark.parametrize("term", ["moon", "distil"])
def test_what_is_compared_with_the_last_model_follows_the_client(term, tiny_network):
    adapter = EntropyGradient(lr=0.1, **{term: 1.0})
    client = adapter.adapt(tiny_network, adapter.init(tiny_network), batch())
    for name, tensor in client.own.items():
        assert torch.equal(client.private[f"previous.{name}"], tensor)
    plain = EntropyGradient(lr=0.1)
    unheld = plain.adapt(tiny_network, plain.adapt(tiny_network, plain.init(tiny_network), batch()), batch(1))
    assert not torch.equal(adapter.adapt(tiny_network, client, batch(1)).own["0.weight"], unheld.own["0.weight"])


def test_a_received_model_is_remembered_until_the_next(tiny_network):
    adapter = EntropyGradient(lr=0.1, prox=1.0)
    client = adapter.init(tiny_network)
    sent = client._replace(own={name: tensor + 1 for name, tensor in client.own.items()})
    client = adapter.receive(tiny_network, sent, batch())
    client = adapter.adapt(tiny_network, client, batch())
    assert all(torch.equal(client.private[f"received.{name}"], sent.own[name]) for name in sent.own)


def test_fine_tuning_is_one_more_step_after_the_download(tiny_network):
    plain, tuned = EntropyGradient(lr=0.1), EntropyGradient(lr=0.1, finetune=1)
    client = plain.init(tiny_network)
    again = plain.adapt(tiny_network, client, batch())
    assert tuned.receives
    assert not plain.receives
    assert torch.equal(tuned.receive(tiny_network, client, batch()).own["0.weight"], again.own["0.weight"])


def test_the_published_code_scores_a_fine_tuned_model_in_training_mode(tiny_network):
    tuned, plain = EntropyGradient(variant="code", finetune=1), EntropyGradient(variant="code")
    client, x = plain.init(tiny_network), batch()
    assert not torch.allclose(tuned.predict(tiny_network, client, x), plain.predict(tiny_network, client, x))
    shifted = {**client.own, "1.running_mean": client.own["1.running_mean"] + 1}
    torch.testing.assert_close(
        tuned.predict(tiny_network, client._replace(own=shifted), x), tuned.predict(tiny_network, client, x)
    )


@pytest.mark.parametrize("wrong", [{"prox": -1.0}, {"moon_tau": 0.0}, {"finetune": -1}])
def test_a_wrong_regulariser_is_refused(wrong):
    with pytest.raises(UserError, match=f"grad.{next(iter(wrong))}"):
        EntropyGradient(**wrong)
