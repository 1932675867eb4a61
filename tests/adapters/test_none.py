"""The source model as it is."""

from __future__ import annotations

import torch

from fedctta.adapters.none import NoAdaptation


def test_predicts_with_the_source_model_and_owns_nothing(tiny_module, tiny_network):
    x = torch.rand(4, 3, 8, 8)
    client = NoAdaptation().adapt(tiny_network, NoAdaptation().init(tiny_network), x)
    assert client.own == {}
    torch.testing.assert_close(NoAdaptation().predict(tiny_network, client, x), tiny_module(x))
