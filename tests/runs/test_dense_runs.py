"""Runs that predict every pixel, from data to record and back."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedctta.core.network import Network
from fedctta.data.masked import MaskedDomains
from fedctta.engine.tally import Tally
from fedctta.errors import UserError
from fedctta.results.records import Record
from fedctta.results.summaries import by_domain, of_run
from fedctta.runs.datasets import public_images
from fedctta.runs.experiment import run
from fedctta.runs.settings import Experiment
from fedctta.streams import build
from fedctta.streams.clusters import IID
from fedctta.training.dense import judge
from fedctta.training.pretraining import pretrain

SIDE, CLASSES = 8, 3
SMALL = {"clients": 2, "slots": 2, "batch": 3, "niid.clusters": 2, "device": "cpu"}


class Dense(nn.Module):
    """Logits for every pixel."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).movedim(1, -1)).movedim(-1, 1)


@pytest.fixture
def module():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Dense().eval()


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    names, sizes = ("near", "far"), (12, 14)
    images = {n: random.integers(0, 256, (k, SIDE, SIDE, 3), np.uint8) for n, k in zip(names, sizes, strict=True)}
    labels = {n: random.integers(0, CLASSES, images[n].shape[:3]).astype(np.uint8) for n in names}
    for masks in labels.values():
        masks[:, :2] = 255
    return MaskedDomains(names, images, labels, ("x", "y", "z"), ("a note",))


@pytest.fixture
def play(data, module):
    return lambda **values: run(**{"dataset": data, "model": module, **SMALL, **values})


def test_a_dense_network_has_a_row_for_every_pixel(module):
    x = torch.rand(2, 3, 4, 6)
    output, logits = Network(module, dense=True)({}, x), module(x)
    assert output.logits.shape == (2 * 4 * 6, CLASSES)
    torch.testing.assert_close(output.logits[24 + 6 * 2 + 5], logits[1, :, 2, 5])
    torch.testing.assert_close(output.features @ module.head.weight.T + module.head.bias, output.logits)


def test_the_head_of_a_dense_network_is_its_last_layer_if_it_sees_one_pixel():
    last = nn.Conv2d(4, CLASSES, 1)
    body = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()]
    network, x = Network(nn.Sequential(*body, last), dense=True), torch.rand(2, 3, 4, 4)
    output = network({}, x)
    assert network.classifier == "2"
    torch.testing.assert_close(output.features @ last.weight.flatten(1).T + last.bias, output.logits)
    assert not Network(nn.Sequential(*body, nn.Conv2d(4, CLASSES, 3)), dense=True).has_features


def test_ignored_pixels_are_counted_nowhere(data):
    stream = build(IID(), data, clients=2, slots=1, batch=3, seed=0)
    tally = Tally(stream, np.zeros(0, np.int64), torch.device("cpu"))
    slot = stream.slot(0)
    labels = torch.from_numpy(slot.labels)
    truth = labels.long().clamp(max=CLASSES - 1)
    sure = 9.0 * nn.functional.one_hot(truth, CLASSES).float()
    sure[labels == 255] = torch.tensor([0.0, 0.0, 9.0])
    tally.record(0, sure, labels, torch.from_numpy(slot.domain))
    counted = 3 * (SIDE - 2) * SIDE
    assert tally.seen()[0].tolist() == tally.correct[0].tolist() == [counted, counted]
    assert int(tally.predicted.sum()) == int(tally.right.sum()) == int(tally.calibration[:, 0].sum()) == 2 * counted
    assert int(tally.calibration[:, 2].sum()) == 2 * counted
    alone = sure[labels != 255].log_softmax(-1)
    assert float(tally.entropy[0, 0]) == pytest.approx(-float((alone.exp() * alone).sum(-1).mean()), rel=1e-4)
    assert tally.accuracy(1) == 1
    first = slot.labels[0, : SIDE * SIDE].reshape(SIDE, SIDE)
    assert (tally.masks[0].numpy() == np.where(first == 255, 2, first)).all()


def test_counts_agree_and_overlap_is_that_of_the_confusion_matrix(play, data, module):
    (record,) = play(adapter="none")
    assert record.class_seen.sum() == record.seen.sum() == record.class_predicted.sum()
    assert record.class_right.sum() == record.correct.sum()
    assert record.seen.max() == 3 * (SIDE - 2) * SIDE
    assert record.class_seen.dtype == record.class_right.dtype == np.int64
    network = Network(module, dense=True)
    stream = build(IID(), data, clients=2, slots=2, batch=3, seed=0)
    confusion = torch.zeros(CLASSES, CLASSES)
    for t in range(len(stream)):
        slot = stream.slot(t)
        for images, labels in zip(slot.images, slot.labels, strict=True):
            with torch.no_grad():
                guess = network({}, torch.from_numpy(images).movedim(-1, 1) / 255).logits.argmax(-1).numpy()
            valid = labels != 255
            np.add.at(confusion.numpy(), (labels[valid], guess[valid]), 1)
    expected = judge(confusion)
    assert record.accuracy == pytest.approx(expected["pixel_accuracy"])
    assert record.miou == pytest.approx(expected["miou"])
    assert of_run(record, "miou") == pytest.approx(100 * record.miou)
    assert of_run(record, "dice") == pytest.approx(100 * record.dice)
    assert by_domain(record, "miou") == pytest.approx({k: 100 * v for k, v in record.miou_by_domain.items()})


@pytest.mark.parametrize(
    "values", [{"adapter": "tent", "aggregator": "fedctta"}, {"aggregator": "fedavg", "lift": "loop"}]
)
def test_a_run_leaves_a_record_a_summary_and_a_report(play, tmp_path, values):
    result = play(**values, out=tmp_path)
    summary, _ = result.summaries()
    json.dumps(summary, allow_nan=False)
    assert {"miou", "dice", "miou_by_domain", "pixels"} <= set(summary)
    assert "severity" not in summary
    assert summary["classes"] == ["x", "y", "z"]
    assert any("as the smallest has" in note for note in summary["notes"])
    (again,) = play(**values, out=tmp_path, resume=True)
    assert again.summary() == summary
    np.testing.assert_array_equal(again.pictures, result.records[0].pictures)
    assert again.dense
    page = result.write_report(tmp_path)
    assert "Predicted masks" in page.read_text(encoding="utf-8")
    assert (tmp_path / "masks.png").stat().st_size > 1000
    assert "| mIoU | class mean | Dice = macro F1 | worst client |" in result.table().markdown()


@pytest.mark.parametrize(
    "values",
    [
        {"adapter": "bn", "aggregator": "fedavg"},
        {"adapter": "tent", "aggregator": "fedctta"},
        {"adapter": "grad", "aggregator": "ugsa", "lift": "loop"},
    ],
)
def test_a_resumed_run_leaves_the_record_of_an_unbroken_one(data, module, tmp_path, monkeypatch, values):
    plain = {key: value for key, value in SMALL.items() if "." not in key}
    play = partial(run, dataset=data, model=module, stream="iid", retention=4, **plain, **values)
    (whole,) = play(out=tmp_path / "whole")

    def interrupt(t, tally):
        if t == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr("fedctta.runs.progress.RoundBar.watch", lambda bar, label, rounds: interrupt)
        with pytest.raises(KeyboardInterrupt):
            play(out=tmp_path / "broken")
    assert len(list((tmp_path / "broken" / "runs").glob("*.checkpoint"))) == 1
    (resumed,) = play(out=tmp_path / "broken", resume=True)
    for part in fields(Record):
        if part.name not in {"seconds", "peak_memory_mb"}:
            mine, theirs = getattr(resumed, part.name), getattr(whole, part.name)
            assert np.array_equal(mine, theirs, equal_nan=True) if isinstance(mine, np.ndarray) else mine == theirs


def test_what_is_kept_of_earlier_domains_is_measured_by_pixels(data, module):
    plain = {key: value for key, value in SMALL.items() if "." not in key}
    (record,) = run(dataset=data, model=module, adapter="none", stream="iid", retention=4, **plain)
    assert np.nanmax(record.retained) <= 1
    assert record.forgetting == 0


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two folders of images and masks: "all" with classes 0 to 2, "some" without class 2."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    random = np.random.default_rng(0)
    for name, classes in (("all", 3), ("some", 2)):
        for kind, size, values in (("images", (SIDE, SIDE, 3), 256), ("masks", (SIDE, SIDE), classes)):
            (tmp_path / name / "a" / kind).mkdir(parents=True)
            for k in range(12):
                picture = random.integers(0, values, size).astype(np.uint8)
                Image.fromarray(picture).save(tmp_path / name / "a" / kind / f"{k}.png")
    return tmp_path


def test_a_folder_without_the_highest_class_is_run_with_the_models_classes(folders, module):
    one = {**SMALL, "niid.clusters": 1, "dataset": "masked", "folder": str(folders / "some")}
    (record,) = run(model=module, **one)
    assert record.settings["classes"] == ["class 0", "class 1", "class 2"]
    assert record.class_seen.shape[-1] == 3
    assert record.class_seen[..., 2].sum() == 0
    pretrain({"dataset": "masked", "folder": str(folders / "all"), "epochs": "1", "batch": "4"})
    (record,) = run(**one)
    assert record.settings["classes"] == ["class 0", "class 1", "class 2"]
    (folders / "some" / "classes.txt").write_text("x\ny\nz\n")
    (record,) = run(**one)
    assert record.settings["classes"] == ["x", "y", "z"]


def test_a_folder_with_more_classes_than_the_model_is_told(folders):
    pretrain({"dataset": "masked", "folder": str(folders / "some"), "epochs": "1", "batch": "4"})
    with pytest.raises(UserError, match="does not fit this network"):
        run(**{**SMALL, "niid.clusters": 1, "dataset": "masked", "folder": str(folders / "all")})


def test_a_record_without_pictures_is_not_dense(play, tmp_path):
    (record,) = play()
    path = tmp_path / "old.safetensors"
    replace(record, pictures=np.zeros((0, 0, 0, 5), np.uint8)).save(path)
    old = Record.load(path)
    assert not old.dense
    assert "miou" not in old.summary()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"adapter": "lame"}, "adapter 'lame' works on whole images"),
        ({"samples": "dirichlet"}, "samples=dirichlet needs one class an image"),
        ({"model": "resnet8"}, "model=resnet8 does not fit data with a class for every pixel: use model=unet"),
        ({"model": Dense(classes=4)}, "3 classes"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))}, "does not predict every pixel"),
    ],
)
def test_what_does_not_fit_is_told(play, values, said):
    with pytest.raises(UserError, match=said):
        play(**values)


def test_a_dense_model_does_not_fit_plain_images(domains):
    with pytest.raises(UserError, match="model=unet does not fit data with one class an image: use model=resnet8"):
        run(dataset=domains, model="unet", **SMALL)


def test_public_images_of_scenes_are_clean_and_a_folder_has_none():
    assert public_images(Experiment(dataset="scenes"), None, 3, torch.device("cpu")).shape == (3, 3, 48, 48)
    for adapter, asks in (
        ("bn", "aggregator fedctta asks for: use fedctta.probe=noise, source_images=PATH, or another aggregator"),
        ("eata", "adapter eata asks for: use eata.fisher=0, source_images=PATH, or another adapter"),
        ("rdumb", "adapter rdumb asks for: use rdumb.fisher=0, source_images=PATH, or another adapter"),
    ):
        asking = Experiment(dataset="masked", adapter=adapter, parameters={"rdumb": {"fisher": 1.0}})
        with pytest.raises(UserError, match=f"dataset=masked has no images that all know, which {asks}"):
            public_images(asking, None, 3, torch.device("cpu"))


def test_the_health_of_a_dense_run_is_watched_too(play):
    (record,) = play(adapter="tent", aggregator="local", check=2, guard="reset")
    assert len(record.health) == record.seen.shape[1]
    assert all(0 < client.accuracy <= 1 for client in record.health)
