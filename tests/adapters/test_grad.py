"""TTA-grad against torch's own optimisers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.grad import EntropyGradient, mean_entropy, pseudo_label_loss
from fedctta.errors import UserError
from fedctta.network import Network


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
