"""The server's model goes to those who take part or join, and to nobody else."""

from __future__ import annotations

import pytest
import torch

from fedctta.aggregators.common.server_model import ServerModel

MODEL = {"a": torch.tensor([7.0, 8.0]), "b": torch.tensor(9.0)}
MEMORY = {"global.a": MODEL["a"], "global.b": MODEL["b"], "momentum.a": torch.zeros(2)}
OWN = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "b": torch.tensor([1.0, 2.0, 3.0])}
SOME = torch.tensor([True, False, True])


@pytest.fixture
def method():
    return ServerModel()


def check_handed(given):
    """Clients 0 and 2 have the server's model, client 1 its own."""
    assert given["a"].tolist() == [[7.0, 8.0], [3.0, 4.0], [7.0, 8.0]]
    assert given["b"].tolist() == [9.0, 2.0, 9.0]


def test_those_who_take_part_are_sent_the_model_and_the_others_keep_theirs(method):
    sent, memory = method.step(None, None, OWN, SOME, MEMORY)
    check_handed(sent)
    assert memory is MEMORY


def test_those_who_join_are_handed_the_model(method):
    check_handed(method.welcome(OWN, SOME, MEMORY))


@pytest.mark.parametrize("memory", [{}, {"global.a": MODEL["a"]}, {"momentum.a": MODEL["a"], "momentum.b": MODEL["b"]}])
def test_before_there_is_a_whole_model_those_who_join_keep_theirs(method, memory):
    assert method.welcome(OWN, SOME, memory) is OWN  # the very same: nothing was sent, and no bytes are counted


def test_what_is_kept_is_the_model_alone(method):
    kept = method.keeps(MEMORY)
    assert kept.keys() == MODEL.keys()
    assert all(torch.equal(kept[name], MODEL[name]) for name in MODEL)
    assert method.keeps({"momentum.a": torch.zeros(2)}) == {}


@pytest.mark.parametrize("measured", [True, False])
def test_what_the_engine_mixes_reaches_nobody(method, measured):
    assert not method.mixes(measured)
