from __future__ import annotations

import pytest
import torch

from fedctta.adapters.bn import BatchStatistics
from fedctta.core.network import Network
from fedctta.errors import UserError
from fedctta.online import saved
from fedctta.online.saved import identity, read_state, write_state


def test_identity_tells_weights_methods_and_parameters_apart(tiny_network):
    base = identity(tiny_network, BatchStatistics())
    assert base == identity(tiny_network, BatchStatistics())
    assert base != identity(tiny_network, BatchStatistics(0.5))
    name = next(iter(tiny_network.state))
    tiny_network.state[name] = tiny_network.state[name] + 1
    assert base != identity(tiny_network, BatchStatistics())


def test_models_of_every_precision_have_an_identity(tiny_module):
    found = {identity(Network(tiny_module.to(t)), BatchStatistics()) for t in (torch.float64, torch.bfloat16)}
    assert len(found) == 2


def test_what_is_written_is_read_for_the_same_model_and_method(tiny_network, tmp_path):
    path = tmp_path / "folder" / "state.safetensors"
    write_state(path, tiny_network, BatchStatistics(0.5), {"a": torch.arange(3)})
    assert read_state(path, tiny_network, BatchStatistics(0.5))["a"].tolist() == [0, 1, 2]
    assert [file.name for file in path.parent.iterdir()] == ["state.safetensors"]
    with pytest.raises(UserError, match="another method"):
        read_state(path, tiny_network, BatchStatistics())


def test_a_state_with_parameters_that_the_method_does_not_have_is_of_another_version(
    tiny_network, tmp_path, monkeypatch
):
    path = tmp_path / "state.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(saved, "_method", lambda adapter: '["bn", {"momentum": 0.1, "patience": 3}]')
        write_state(path, tiny_network, BatchStatistics(), {"a": torch.arange(3)})
    with pytest.raises(UserError, match="saved by another version of fedctta: begin without it"):
        read_state(path, tiny_network, BatchStatistics())
