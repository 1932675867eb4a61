"""Weights of other programs: what is read, and what is refused in one line."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file, save_model
from torch import nn

from fedctta.errors import UserError
from fedctta.models.checkpoints import SUFFIXES, read_tensors
from fedctta.models.zoo import load_weights


@pytest.fixture
def module():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    layer.register_buffer("index", torch.arange(3))
    return layer


def other(module):
    """Give a module of the same form with other numbers."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2))
    layer.register_buffer("index", torch.zeros(3, dtype=torch.int64))
    return layer


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("form", ["plain", "state_dict", "wrapped", "nested and wrapped"])
def test_the_usual_forms_are_read(module, tmp_path, suffix, form):
    tensors = dict(module.state_dict())
    if "wrapped" in form:
        tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(
            {"epoch": 3, "state_dict": tensors} if form in ("state_dict", "nested and wrapped") else tensors, path
        )
    filled = other(module)
    load_weights(filled, path)
    for name, tensor in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(filled.state_dict()[name], tensor)
    assert filled.index.dtype == torch.int64


def test_a_whole_model_is_refused_without_running_it(module, tmp_path):
    path = tmp_path / "model.pt"
    torch.save(module, path)
    with pytest.raises(UserError, match=r"more than tensors.*save model\.state_dict\(\)"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("held", "said"),
    [([1, 2], "no model's tensors"), ({"a": 1}, "no model's tensors"), ({}, "no model's tensors")],
)
def test_what_is_no_model_is_told(held, said, tmp_path):
    path = tmp_path / "x.pth"
    torch.save(held, path)
    with pytest.raises(UserError, match=said):
        read_tensors(path)


@pytest.mark.parametrize(("name", "said"), [("a.npy", "must end in .safetensors"), ("a.pt", "no weights at")])
def test_names_are_checked(name, said, tmp_path):
    if name == "a.npy":
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=said):
        read_tensors(tmp_path / name)


@given(st.binary(max_size=200), st.sampled_from(SUFFIXES))
def test_whatever_bytes_a_file_has_one_line_tells(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("bytes") / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError) as told:
        read_tensors(path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["junk", "error", "", "version https://git-lfs.github.com/spec/v1", "<!DOCTYPE html>"])
def test_what_is_no_pytorch_file_is_told_so(tmp_path, text):
    path = tmp_path / "weights.pt"
    path.write_text(text)
    with pytest.raises(UserError, match=r"weights.pt is no PyTorch file: get the file itself, or make it again$"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"\x80", b"\x80\x02j", b"\x80\x02cerror", b"PK\x03\x04junk", b"\x80\x02X\xff"])
def test_a_damaged_pickle_is_one_line_whatever_it_raises(tmp_path, content):
    path = tmp_path / "weights.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"^[^\n]*weights.pt [^\n]*$"):
        read_tensors(path)


def test_sparse_tensors_are_refused(tmp_path):
    path = tmp_path / "weights.pt"
    torch.save({"0.weight": torch.eye(3).to_sparse()}, path)
    with pytest.raises(UserError, match=r"holds 0\.weight as a sparse or quantised tensor: save it as a dense one"):
        read_tensors(path)


def test_a_file_may_hold_shared_tensors_once(tmp_path):
    def tied(seed):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        module[2].weight = module[0].weight
        return module

    path = tmp_path / "weights.safetensors"
    one, other = tied(0), tied(1)
    save_model(one, path)
    load_weights(other, path)
    assert torch.equal(other[2].weight, one[0].weight)
    assert other[2].weight is other[0].weight
    with pytest.raises(UserError, match="weight is missing"):
        load_weights(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), path)
