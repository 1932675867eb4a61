from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedctta.errors import UserError
from fedctta.models import build, zoo

MODEL = "resnet8-w16"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty package folder and an empty cache."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(zoo, "PACKAGED", tmp_path / "packaged")
    return tmp_path


@pytest.fixture
def saved(tmp_path):
    module = build(MODEL, seed=5)
    module(torch.rand(8, 3, 32, 32))  # moves BatchNorm's running statistics
    path = tmp_path / "w.safetensors"
    zoo.save_weights(module, path, {"model": MODEL, "accuracy": 0.5})
    return module.eval(), path


def test_round_trip(saved):
    module, path = saved
    loaded = zoo.load_model(MODEL, "shapes", weights=path)
    assert not loaded.training
    assert {t.dtype for t in loaded.state_dict().values()} == {torch.float32, torch.int64}
    assert torch.equal(loaded.stem[1].running_mean, module.stem[1].running_mean)
    assert torch.equal(loaded.stem[0].weight, module.stem[0].weight.half().float())
    x = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(loaded(x), module(x), rtol=0.02, atol=0.02)
    assert zoo.read_card(path) == {"model": MODEL, "accuracy": 0.5}


class Crash(Exception):
    """Ends the process, as it were."""


@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_leaves_no_weights_beside_a_card_that_is_not_theirs(step, saved, monkeypatch):
    module, path = saved
    replace, done = Path.replace, []

    def replace_or_crash(part, target):
        done.append(target)
        if len(done) == step:
            raise Crash
        replace(part, target)

    monkeypatch.setattr(Path, "replace", replace_or_crash)
    with pytest.raises(Crash):
        zoo.save_weights(build(MODEL, seed=6), path, {"model": "new"})
    changed = not torch.equal(zoo.load_model(MODEL, "shapes", weights=path).stem[0].weight, module.stem[0].weight)
    assert changed or step == 1
    with pytest.raises(UserError, match="has no card"):
        zoo.read_card(path)


def test_weights_that_cannot_be_written_leave_the_old_ones_and_their_card(saved, monkeypatch):
    _, path = saved
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zoo, "save_file", fail)
    with pytest.raises(UserError, match="No space left"):
        zoo.save_weights(build(MODEL, seed=6), path, {"model": "new"})
    assert path.read_bytes() == before
    assert zoo.read_card(path)["model"] == MODEL
    assert len(list(path.parent.iterdir())) == 2


def test_values_beyond_half_precision_are_refused(saved):
    module, path = saved
    before = path.read_bytes()
    module.head.weight.data[0, 0] = 1e5
    with pytest.raises(UserError, match=r"^head.weight holds values that are not finite in torch.float16, so .*half=F"):
        zoo.save_weights(module, path, {})
    assert path.read_bytes() == before
    zoo.save_weights(module, path, {}, half=False)
    assert zoo.load_model(MODEL, "shapes", weights=path).head.weight[0, 0] == 1e5


def test_a_plain_state_dict_is_taken(saved, tmp_path):
    module, path = saved[0], tmp_path / "plain.safetensors"
    save_file(module.state_dict(), path)
    loaded = zoo.load_model(MODEL, "shapes", weights=path)
    assert torch.equal(loaded.stem[0].weight, module.stem[0].weight)


def test_stored_dtypes_and_names(saved):
    module, path = saved
    stored = load_file(path)
    assert not any("num_batches_tracked" in name for name in stored)
    assert {t.dtype for t in stored.values() if t.ndim > 1} == {torch.float16}
    assert {t.dtype for t in stored.values() if t.ndim == 1} == {torch.float32}
    zoo.save_weights(module.to(memory_format=torch.channels_last), path, {}, half=False)
    loaded = zoo.load_model(MODEL, "shapes", weights=str(path))
    x = torch.rand(4, 3, 32, 32)
    torch.testing.assert_close(loaded(x), module(x), rtol=1e-5, atol=1e-5)


def test_weights_of_ones_own_come_before_packaged_ones(home):
    assert zoo.weights_path(MODEL, "shapes") is None
    own, packaged = build(MODEL, seed=1), build(MODEL, seed=2)
    zoo.save_weights(packaged, home / "packaged" / f"{MODEL}-shapes.safetensors", {})
    found = zoo.find_weights(MODEL, "shapes-c")
    assert (found, zoo.origin(found)) == (home / "packaged" / f"{MODEL}-shapes.safetensors", "package")
    zoo.save_weights(own, zoo.cached_path(MODEL, "shapes"), {})
    found = zoo.find_weights(MODEL, "shapes-c")
    assert (found, zoo.origin(found)) == (home / "cache" / "weights" / f"{MODEL}-shapes.safetensors", "cache")
    torch.testing.assert_close(zoo.load_model(MODEL, "shapes-c").head.weight, own.head.weight, rtol=1e-3, atol=1e-3)
    assert zoo.origin(Path("weights.safetensors")) == "elsewhere"


def test_absent_weights_name_the_command(home):
    with pytest.raises(UserError, match="fedctta pretrain model=resnet8-w16 dataset=cifar10`"):
        zoo.load_model(MODEL, "cifar10-c")
    with pytest.raises(UserError, match="no weights of vit-tiny for cifar10: run `fedctta pretrain model=vit-tiny"):
        zoo.load_model("vit-tiny", "cifar10")


def complaint(path: Path, model: str = MODEL, classes: int = 10) -> str:
    with pytest.raises(UserError) as error:
        zoo.load_model(model, "shapes", classes, weights=path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_path(tmp_path):
    assert "no weights at" in complaint(tmp_path / "none.safetensors")
    assert "no weights at" in complaint(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 1000, -1])
def test_truncated_file(saved, cut):
    _, path = saved
    path.write_bytes(path.read_bytes()[:cut])
    assert "damaged" in complaint(path)


def test_pickles_are_refused(tmp_path):
    path = tmp_path / "w.pt"
    torch.save(build(MODEL), path)
    assert "holds more than tensors" in complaint(path)


def test_first_mismatch_is_named(saved):
    _, path = saved
    assert "head.weight is [10, 64], not [7, 64]" in complaint(path, classes=7)
    assert "stem.0.weight is [16, 3, 7, 7], not [64, 3, 7, 7]" in complaint(path, model="resnet8")
    tensors = load_file(path)
    save_file({**tensors, "more": torch.zeros(1)}, path)
    assert "more is unexpected" in complaint(path)
    save_file({n: t for n, t in tensors.items() if n != "head.bias"}, path)
    assert "head.bias is missing" in complaint(path)


def test_values_that_are_not_finite(saved):
    _, path = saved
    tensors = load_file(path)
    tensors["head.bias"][3] = torch.nan
    save_file(tensors, path)
    assert re.search("not finite in head.bias", complaint(path))


def test_card_missing_or_damaged(saved):
    _, path = saved
    card = path.with_suffix(".json")
    for text in ("{", "[]"):
        card.write_text(text)
        with pytest.raises(UserError, match="damaged"):
            zoo.read_card(path)
    card.unlink()
    with pytest.raises(UserError, match=r"put w\.json beside it"):
        zoo.read_card(path)


def test_a_recipe_may_be_named(home):
    usual, other = build(MODEL, seed=1), build(MODEL, seed=2)
    zoo.save_weights(usual, zoo.cached_path(MODEL, "shapes"), {})
    zoo.save_weights(other, zoo.cached_path(MODEL, "shapes", "other"), {})
    assert zoo.cached_path(MODEL, "shapes-c", "other").name == "resnet8-w16-shapes-other.safetensors"
    loaded = zoo.load_model(MODEL, "shapes-c", weights="other")
    assert torch.equal(loaded.stem[0].weight, other.stem[0].weight.half().float())
    with pytest.raises(UserError, match=r"no third weights of resnet8-w16 for shapes: .* recipe=third"):
        zoo.load_model(MODEL, "shapes", weights="third")


def test_a_model_may_take_the_weights_of_another(home):
    proper = build("resnext29", 100, seed=1).eval()
    zoo.save_weights(proper, zoo.cached_path("resnext29", "cifar100"), {}, half=False)
    assert zoo.weights_path("resnext29-raw", "cifar100-c") == zoo.cached_path("resnext29", "cifar100")
    raw = zoo.load_model("resnext29-raw", "cifar100-c", 100)
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(raw(2 * x - 1), proper(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match=r"no weights of resnext29 for cifar10: .* model=resnext29 dataset=cifar10`"):
        zoo.load_model("resnext29-raw", "cifar10-c")
