"""The server as a first version is written."""

from __future__ import annotations

import pytest
import torch

from fedctta.bench.servers import make_signal, make_weigh
from fedctta.models import build

CPU = torch.device("cpu")


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("aggregator", ["fedctta", "fedtsa"])
def test_weights_are_row_stochastic(aggregator, published):
    weigh = make_weigh(aggregator, CPU, published)
    for _ in range(2):
        weights = weigh([torch.rand(8) for _ in range(4)])
    assert weights.shape == (4, 4)
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert (weights >= 0).all()


def test_a_signal_is_the_mean_feature_of_the_source():
    source, x = build("resnet8-w16").eval(), torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = []
    source.head.register_forward_pre_hook(lambda layer, inputs: found.append(inputs[0].mean(0)))
    with torch.no_grad():
        source(x)
    torch.testing.assert_close(make_signal("fedtsa", source, CPU, published=False)(None, x), found[0])
    assert make_signal("fedavg", source, CPU, published=False) is None
