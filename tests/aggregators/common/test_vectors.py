"""Models read as vectors, on numbers one can check by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedctta.aggregators import Uploads
from fedctta.aggregators.common.vectors import (
    average_all,
    check_features,
    cosines,
    counted,
    fingerprint,
    for_active,
    gram,
    kept_from,
    owns_weights,
    source_feature,
    squared_distances,
)
from fedctta.core.clients import Client
from fedctta.core.network import Network
from fedctta.errors import UserError

ALL = torch.ones(3, dtype=torch.bool)
MODELS = {"a": torch.tensor([[[3.0], [0.0]], [[0.0], [1.0]], [[0.0], [0.0]]]), "b": torch.tensor([4.0, 0.0, 0.0])}


def test_inner_products_and_distances_by_hand():
    """The vectors are (3, 0, 4), (0, 1, 0) and (0, 0, 0)."""
    assert gram(MODELS, ALL).tolist() == [[25, 0, 0], [0, 1, 0], [0, 0, 0]]
    torch.testing.assert_close(
        squared_distances(MODELS, ALL), torch.tensor([[0.0, 26.0, 25.0], [26.0, 0.0, 1.0], [25.0, 1.0, 0.0]])
    )


def test_the_origin_is_one_model_or_one_for_each_client():
    one = {"a": torch.tensor([[1.0], [0.0]]), "b": torch.tensor(0.0)}
    assert gram(MODELS, ALL, one).tolist() == [[20, -2, -2], [-2, 2, 1], [-2, 1, 1]]
    assert gram(MODELS, ALL, MODELS).tolist() == [[0] * 3] * 3


def test_the_order_of_names_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    models = {name: torch.randn(3, 50, generator=generator) for name in "fedctba"}
    again = dict(sorted(models.items()))
    assert torch.equal(gram(models, ALL), gram(again, ALL))
    assert torch.equal(squared_distances(models, ALL), squared_distances(again, ALL))


def test_nothing_owned_means_no_difference():
    assert gram({}, ALL).tolist() == squared_distances({}, ALL).tolist() == [[0] * 3] * 3


def test_cosines_by_hand():
    vectors = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-6.0, -8.0]])
    expected = torch.tensor([[1, 0.96, -1], [0.96, 1, -0.96], [-1, -0.96, 1]])
    torch.testing.assert_close(cosines(vectors @ vectors.T), expected)


def test_a_zero_vector_is_like_another_and_unlike_the_rest():
    vectors = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(cosines(vectors @ vectors.T), torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))


def test_equal_models_lie_exactly_together():
    one = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert squared_distances({"a": one.expand(3, -1)}, ALL).abs().max() == 0


def test_who_sends_a_feature(tiny_network):
    x = torch.rand(4, 3, 8, 8)
    statistics, weights = Client(tiny_network.statistics), Client(dict(tiny_network.state))
    assert not owns_weights(tiny_network, statistics.own)
    assert owns_weights(tiny_network, weights.own)
    assert source_feature(tiny_network, statistics, x) == {}
    adapted = {**weights.own, "0.bias": weights.own["0.bias"] + 1}
    feature = source_feature(tiny_network, Client(adapted), x)["feature"]
    torch.testing.assert_close(feature, tiny_network({}, x).features.mean(0))
    assert feature.shape == (4,)


def test_clients_are_compared_by_the_signal_if_there_is_one():
    assert fingerprint(Uploads(MODELS, {}, ALL)) is MODELS
    signals = {"feature": torch.zeros(3, 2)}
    assert fingerprint(Uploads(MODELS, signals, ALL)) is signals


def test_a_model_without_features_is_refused_only_where_they_are_needed():
    network = Network(nn.Sequential(nn.Conv2d(3, 2, 4), nn.BatchNorm2d(2), nn.Flatten()))
    check_features("fedamp", network, network.statistics)
    with pytest.raises(UserError, match=r"use fedamp\.variant=paper"):
        check_features("fedamp", network, network.state)


def test_only_the_last_client_receives():
    weights = torch.full((3, 3), 1 / 3)
    third = weights[0, 0].item()
    assert kept_from("all", weights) is weights
    assert kept_from("last", weights).tolist() == [[1, 0, 0], [0, 1, 0], [third] * 3]
    assert kept_from("last", weights[:1, :1] * 3).tolist() == [[1]]


def test_averages_by_weight():
    def average(stack, weight, otherwise):
        return average_all({"": stack}, weight, {"": otherwise})[""]

    stack, otherwise = torch.tensor([[torch.nan], [2.0], [4.0]]), torch.tensor([9.0])
    assert average(stack, torch.tensor([0.0, 1.0, 0.5]), otherwise).tolist() == pytest.approx([8 / 3])
    assert average(stack, torch.zeros(3), otherwise).tolist() == [9]
    assert average(stack[1:, 0], torch.ones(2), otherwise[0]).item() == 3


def test_what_uploads_count():
    active, trust = torch.tensor([True, False]), torch.tensor([0.5, 0.0])
    assert counted(Uploads({}, {}, active)).tolist() == [1, 0]
    assert counted(Uploads({}, {}, active, None, trust)).tolist() == [0.5, 0]


def test_rows_of_those_present():
    active, old = torch.tensor([False, True, True]), torch.zeros(3, 2)
    assert for_active(active, torch.tensor([5.0, 6.0]), old).tolist() == [[0, 0], [5, 6], [5, 6]]
    assert for_active(active, torch.tensor(7.0), old[:, 0]).tolist() == [0, 7, 7]
