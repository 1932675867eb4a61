"""FedAMP's weights on worked examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedctta.aggregators import Uploads
from fedctta.aggregators.fedamp import FedAMP
from fedctta.core.network import Network
from fedctta.errors import UserError

ALL = torch.ones(3, dtype=torch.bool)
OWN = {"a": torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 4.0]])}  # squared distances 1, 25 and 18


def weigh(aggregator, own=OWN, active=ALL, signals=None):
    weights, memory = aggregator.collaborate(None, Uploads(own, signals or {}, active), {})
    assert memory == {}
    torch.testing.assert_close(weights.sum(1), torch.ones(len(active)), atol=1e-6, rtol=0)
    return weights


def test_the_paper_by_hand():
    a, b, c = math.exp(-1 / 9) / 6, math.exp(-25 / 9) / 6, math.exp(-18 / 9) / 6  # alpha / N = 0.5 / 3
    expected = torch.tensor([[1 - a - b, a, b], [a, 1 - a - c, c], [b, c, 1 - b - c]])
    torch.testing.assert_close(weigh(FedAMP(alpha=0.5, sigma=9.0)), expected)
    torch.testing.assert_close(expected[0], torch.tensor([0.8405, 0.1491, 0.0104]), atol=1e-4, rtol=0)


def test_equal_models_are_averaged_plainly():
    torch.testing.assert_close(weigh(FedAMP(), {"a": torch.ones(3, 2)}), torch.full((3, 3), 1 / 3))


def test_the_code_by_hand():
    near, far, other = math.exp(-1), math.exp(-5), math.exp(-math.sqrt(18))
    expected = [
        [0.3, 0.7 * near / (near + far), 0.7 * far / (near + far)],
        [0.7 * near / (near + other), 0.3, 0.7 * other / (near + other)],
        [0.7 * far / (far + other), 0.7 * other / (far + other), 0.3],
    ]
    torch.testing.assert_close(weigh(FedAMP(variant="code")), torch.tensor(expected))


def test_the_code_compares_features_where_there_are_some():
    signals = {"feature": torch.tensor([[0.0], [2.0], [1.0]])}
    near, far = math.exp(-1), math.exp(-2)
    expected = [0.5, 0.5 * far / (near + far), 0.5 * near / (near + far)]
    weights = weigh(FedAMP(variant="code", self_weight=0.5), signals=signals)
    torch.testing.assert_close(weights[0], torch.tensor(expected))


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_the_absent_count_for_nothing(variant):
    present = torch.tensor([True, True, False])
    pair = weigh(FedAMP(variant=variant), {"a": OWN["a"][:2]}, ALL[:2])
    torch.testing.assert_close(weigh(FedAMP(variant=variant), active=present)[:2, :2], pair)
    assert (weigh(FedAMP(variant=variant), active=present)[:2, 2] == 0).all()


@pytest.mark.parametrize("variant", ["paper", "code"])
def test_alone(variant):
    assert weigh(FedAMP(variant=variant), {"a": OWN["a"][:1]}, ALL[:1]).tolist() == [[1]]
    assert weigh(FedAMP(variant=variant), active=torch.tensor([False, True, False]))[1].tolist() == [0, 1, 0]


def test_far_models_are_left_alone():
    assert weigh(FedAMP(), {"a": OWN["a"] * 100}).tolist() == torch.eye(3).tolist()


def test_only_the_last_client_receives():
    weights = weigh(FedAMP(variant="code", receivers="last"))
    assert weights[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    torch.testing.assert_close(weights[2], weigh(FedAMP(variant="code"))[2])


def test_impossible_parameters_are_refused():
    for parameters in ({"alpha": 0}, {"alpha": 1.1}, {"sigma": 0}, {"self_weight": 1.1}):
        with pytest.raises(UserError, match="must"):
            FedAMP(**parameters)


def test_a_model_without_features_is_refused_for_the_code_alone():
    network = Network(nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten()))
    FedAMP().check(network, network.state)
    with pytest.raises(UserError, match=r"fedamp\.variant=paper"):
        FedAMP(variant="code").check(network, network.state)
