"""FedICON's contrastive step: the loss by hand, the step against autograd."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from fedctta.adapters.common.augmentation import augment
from fedctta.adapters.fedicon import FedICON, nt_xent, two_views
from fedctta.core.norms import refreshed
from fedctta.core.randomness import fork, keys
from fedctta.errors import UserError


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def test_the_loss_of_two_images_by_hand():
    # Views (1, 0) and (0, 2) of image one, (0, 1) and (3, 0) of image two: cosines 0 with the twin.
    crossed = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    # Each has its twin at cosine 0, one stranger at 0 and one at 1: - log(1 / (1 + 1 + exp(1 / tau))).
    assert nt_xent(crossed, 0.5).item() == pytest.approx(math.log(2 + math.exp(2)), abs=1e-6)
    alike = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 2.0]])
    # Now the twin is at 1 and both strangers at 0: - log(exp(1 / tau) / (exp(1 / tau) + 2)).
    assert nt_xent(alike, 0.5).item() == pytest.approx(math.log(2 + math.exp(2)) - 2, abs=1e-6)


def test_the_loss_is_cross_entropy_with_the_twin_as_label():
    z, half = images(10, 4), 5
    cosines = F.cosine_similarity(z[:, None], z[None], dim=-1) / 0.3
    expected = F.cross_entropy(cosines.fill_diagonal_(-torch.inf), (torch.arange(10) + half) % 10)
    torch.testing.assert_close(nt_xent(z, 0.3), expected)


def test_every_image_has_two_views_of_its_own():
    x, key = images(3, 3, 8, 8), keys(0, 1)[0]
    seen = two_views(x, key)
    assert seen.shape == (6, 3, 8, 8)
    for number in range(6):
        one = augment(x[number % 3][None], fork(key + number, 1))[0]
        torch.testing.assert_close(seen[number], one)
    assert len({round(float(view.mean()), 6) for view in two_views(x[:1].expand(4, 3, 8, 8), key)}) == 8


def test_steps_move_the_extractor_as_training_would(tiny_module, tiny_network):
    x, adapter = images(4, 3, 8, 8), FedICON(lr=0.5, steps=2)
    start = adapter.init(tiny_network)
    with torch.no_grad():
        after = adapter.adapt(tiny_network, start, x)
    module = copy.deepcopy(tiny_module).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    for number in (1, 2):
        z = module[:5](two_views(x, fork(start.private["key"], number)))
        optimiser.zero_grad()
        nt_xent(z, 0.5).backward()
        optimiser.step()
    state = module.state_dict()
    assert not {"5.weight", "5.bias"} & after.own.keys()
    assert torch.equal(state["5.weight"], tiny_module[5].weight)
    for name, tensor in after.own.items():
        torch.testing.assert_close(tensor, state[name], atol=1e-5, rtol=1e-4)
        # What a normalisation right behind it undoes, the convolution's bias, need not move.
        assert name == "0.bias" or not torch.equal(tensor, start.own[name])
    expected = module.eval()(x).detach()
    torch.testing.assert_close(adapter.predict(tiny_network, after, x), expected, atol=1e-4, rtol=1e-3)


def test_steps_lower_the_loss(tiny_network):
    x = images(6, 3, 8, 8)
    adapter = FedICON(lr=10, steps=8, momentum=0.0)  # views look so alike here that small steps change no digit
    client = adapter.init(tiny_network)
    seen = two_views(x, keys(7, 1)[0])

    def loss(own):
        return nt_xent(tiny_network(own, seen, refreshed()).features, 0.5).item()

    assert loss(adapter.adapt(tiny_network, client, x).own) < loss(client.own)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"lr": -1}, "fedicon.lr=-1 must not"),
        ({"steps": 0}, "fedicon.steps=0 must be"),
        ({"tau": 0}, "fedicon.tau=0 must be"),
        ({"momentum": 2}, "fedicon.momentum=2 must lie"),
    ],
)
def test_refuses_impossible_parameters(parameters, message):
    with pytest.raises(UserError, match=message):
        FedICON(**parameters)


def test_says_that_it_is_an_approximation():
    assert "approximation" in (FedICON.__doc__ or "")
