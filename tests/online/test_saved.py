from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedctta
from fedctta.adapters import adapters
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


def images(seed, count):
    return torch.rand(count, 8, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def wide():
    """A model with kernels of which the order in memory tells in the last bits."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).eval()


def small(name):
    """Parameters with which a method is quick."""
    given = {"eata": {"images": 8}, "fedthe": {"images": 8}, "atp": {"rates": "0.01"}, "t3a": {"supports": 3}}
    return given.get(name, {})


@pytest.mark.parametrize("name", adapters.classes())
def test_a_loaded_state_goes_on_with_the_same_bits(name, tmp_path):
    words: dict = {**small(name), "guard": "off"}
    if adapters.create(name, small(name)).source_images:
        words["source_images"] = images(9, 1)[0]
    model, again = (fedctta.adapt(wide(), name, **words) for _ in range(2))
    for x in images(1, 3):
        model(x)
    model.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    for mine, other in zip(model.client, again.client, strict=True):
        assert {n: t.stride() for n, t in mine.items()} == {n: t.stride() for n, t in other.items()}
    for x in images(2, 3):
        assert torch.equal(model(x), again(x))


def test_a_state_without_strides_is_taken(tmp_path):
    """As earlier versions wrote it."""
    model, again = (fedctta.adapt(wide(), "cotta") for _ in range(2))
    model(images(1, 1)[0])
    now = model.adaptation
    tensors = {name: tensor for name, tensor in now.state().items() if not name.startswith("strides.")}
    write_state(tmp_path / "state.safetensors", now.network, now.adapter, tensors)
    again.load(tmp_path / "state.safetensors")
    assert all(torch.equal(t, model.client.own[n]) for n, t in again.client.own.items())


@pytest.mark.parametrize("method", ["no JSON", "3", "[]"])
def test_a_header_of_another_program_is_refused(method, tiny_network, tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "state", metadata={"method": method, "made_by": "me"})
    with pytest.raises(UserError, match="holds no state of an adapted model"):
        read_state(tmp_path / "state", tiny_network, BatchStatistics())


def test_a_saved_state_goes_on_as_if_nothing_had_been(tiny_module, tmp_path, batches):
    model, again = (
        fedctta.adapt(tiny_module, "eata", threshold=0.9, images=8, source_images=torch.rand(8, 3, 8, 8))
        for _ in range(2)
    )
    first, *rest = batches()
    model(first)
    model.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    assert again.health.batches == 1
    for x in rest:
        assert torch.equal(model(x), again(x))


def test_a_state_serves_no_other_method_or_model(tiny_module, tmp_path):
    path = tmp_path / "state.safetensors"
    model = fedctta.adapt(tiny_module, "bn", momentum=0.5)
    with pytest.raises(UserError, match="no state at"):
        model.load(path)
    model.save(path)
    with pytest.raises(UserError, match=r"adapt the module with 'bn', momentum=0\.5"):
        fedctta.adapt(tiny_module, "bn").load(path)
    with torch.no_grad():
        tiny_module[0].bias += 1
    with pytest.raises(UserError, match="another model or of other weights"):
        fedctta.adapt(tiny_module, BatchStatistics(0.5)).load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="holds no state"):
        model.load(path)


def test_a_book_whose_rows_have_another_length_is_refused(tiny_module, tmp_path, batches):
    """As one of a version whose looks had fewer numbers."""
    path = tmp_path / "state.safetensors"
    model = fedctta.adapt(tiny_module, "recall")
    model(batches()[0])
    now = model.adaptation
    tensors = now.state()
    shorter = tensors | {"private.part": tensors["private.part"][:, :-4]}
    write_state(path, now.network, now.adapter, shorter)
    with pytest.raises(UserError, match="is a state of another version of this method: begin with a new one"):
        model.load(path)


@pytest.mark.parametrize("path", ["", "/", None, 3])
def test_a_path_that_names_no_file_is_refused(path, tiny_module):
    model = fedctta.adapt(tiny_module, "bn")
    for use in (model.save, model.load):
        with pytest.raises(UserError, match=r"a state's path is .*: give that of a file"):
            use(path)
