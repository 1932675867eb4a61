"""What a method learnt is found by the model it was learnt for."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from fedctta.adapters.common.learnt import learnt_path, read_learnt
from fedctta.core.network import Network
from fedctta.errors import UserError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))


def test_a_path_belongs_to_one_method_and_one_model(tiny_module):
    network = Network(tiny_module)
    path = learnt_path("mine", network)
    assert path != learnt_path("other", network)
    assert path == learnt_path("mine", Network(tiny_module))
    with torch.no_grad():
        tiny_module[0].weight += 0.1
    assert path != learnt_path("mine", Network(tiny_module))


def test_auto_reads_the_models_own_file_and_a_change_of_it(tiny_network):
    with pytest.raises(
        UserError, match=r"no gains of mine for this model: run .*method=mine .* give mine.gains another"
    ):
        read_learnt("mine", "gains", "auto", tiny_network)
    path = learnt_path("mine", tiny_network)
    path.parent.mkdir()
    for value in (1.0, 2.0):
        save_file({"gain": torch.full((1 + int(value),), value)}, path)
        found, tensors = read_learnt("mine", "gains", "auto", tiny_network)
        assert found == path
        assert tensors["gain"].tolist() == [value] * (1 + int(value))


@pytest.mark.parametrize(("content", "message"), [(b"no", "is damaged"), (None, "no gains of mine .* at ")])
def test_a_file_that_is_damaged_or_not_there_is_told(tiny_network, tmp_path, content, message):
    path = tmp_path / "mine.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_learnt("mine", "gains", str(path), tiny_network)
