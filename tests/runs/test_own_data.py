"""Runs on data of one's own: domains of any sizes, with labels or without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from fedctta.data.domains import Domains
from fedctta.errors import UserError
from fedctta.runs.experiment import run

SIZES = {"clinic": 31, "ward": 50}


@pytest.fixture
def hospital():
    random = np.random.default_rng(0)
    images = {name: random.integers(0, 256, (n, 8, 8, 3), np.uint8) for name, n in SIZES.items()}
    labels = {name: random.integers(0, 3, n) for name, n in SIZES.items()}
    return Domains(tuple(SIZES), images, labels, ("a", "b", "c"))


@pytest.fixture
def play(tiny_module):
    def play(data, **values):
        usual = {"model": tiny_module, "stream": "iid", "clients": 4, "batch": 8, "device": "cpu"}
        return run(**{**usual, "dataset": data, **values})

    return play


def test_every_image_counts_once_in_its_own_domain(hospital, play):
    (record,) = play(hospital)
    met = record.class_seen.sum((1, 2))
    assert met.tolist() == list(SIZES.values())
    assert record.images.sum() == 3 * 4 * 8
    summary = record.summary()
    assert (summary["images"], summary["labelled_images"], summary["rounds"]) == (96, 81, 3)
    right = record.correct.sum(1)
    by_domain = summary["accuracy_by_domain"]
    assert by_domain["clinic"] == pytest.approx(right[0] / 31)
    assert by_domain["ward"] == pytest.approx(right[1:].sum() / 50)
    assert summary["notes"] == [
        "slots for which domains have images: clinic 1, ward 2",
        "images shown again to fill up last batches, counted once: 1 of clinic, 14 of ward",
    ]


def test_labels_change_nothing_but_accuracy(hospital, play):
    (with_labels,) = play(hospital, adapter="tent", aggregator="fedavg")
    (without,) = play(Domains(hospital.names, hospital.images), adapter="tent", aggregator="fedavg")
    assert (with_labels.entropy == without.entropy).all()
    assert (with_labels.collaboration == without.collaboration).all()
    assert with_labels.bytes_up == without.bytes_up
    assert np.isnan(without.accuracy)
    assert not without.labelled
    assert without.mean_entropy == with_labels.mean_entropy


def test_a_run_without_labels_is_reported(hospital, play, tmp_path):
    result = play(Domains(hospital.names, hospital.images), aggregator=["local", "fedavg"], retention=4)
    result.write_json(tmp_path / "x.json")
    page = result.write_report(tmp_path).read_text(encoding="utf-8")
    assert "images shown again to fill up last batches" in page
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    assert any("entropy" in line for line in lines)
    assert result.summaries()[0]["accuracy"] is None
    assert result.summaries()[0]["mean_entropy"] > 0


def test_health_needs_no_labels(hospital, play, tmp_path):
    bare = Domains(hospital.names, hospital.images)
    with_labels, without = (play(data, adapter="tent", aggregator="local", check=2) for data in (hospital, bare))
    assert with_labels.records[0].health == without.records[0].health
    assert "in truth" in with_labels.health()[0]
    assert "in truth" not in without.health()[0]
    assert not without.baselines
    assert "Health, told without labels" in without.write_report(tmp_path).read_text(encoding="utf-8")


def test_domains_can_be_chosen_and_words_about_files_are_refused(hospital, play):
    (record,) = play(hospital, domains="ward")
    assert record.domains == ("ward",)
    assert record.class_seen.sum() == 50
    for words in ({"size": 8}, {"folder": "x"}, {"severity": 3}, {"layout": "sites"}):
        with pytest.raises(UserError, match=r"\w+=\w+ has no effect on data given as an object: drop the key"):
            play(hospital, **words)
    with pytest.raises(UserError, match="unknown domain 'home'"):
        play(hospital, domains="home")


def test_domains_may_be_labelled_in_part(hospital, play):
    (record,) = play(Domains(hospital.names, hospital.images, {"ward": hospital.labels["ward"]}, hospital.classes))
    (full,) = play(hospital)
    assert np.isnan(record.accuracy_by_domain["clinic"])
    assert record.accuracy_by_domain["ward"] == full.accuracy_by_domain["ward"]
    assert record.accuracy == record.accuracy_by_domain["ward"]


def test_a_resumed_run_gives_the_same(hospital, play, tmp_path):
    (first,) = play(hospital, out=tmp_path)
    (again,) = play(hospital, out=tmp_path, resume=True)
    assert (first.seen == again.seen).all()
    assert (first.images == again.images).all()
    other = {**hospital.labels, "ward": hospital.labels["ward"][::-1].copy()}
    (changed,) = play(Domains(hospital.names, hospital.images, other, hospital.classes), out=tmp_path, resume=True)
    assert (changed.correct != first.correct).any()


def test_folders_run_by_their_name(tmp_path, tiny_module, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    random = np.random.default_rng(0)
    for k in range(20):
        path = tmp_path / "pets" / ("photo", "sketch")[k > 12] / ("cat", "dog", "elk")[k % 3] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 8, 3), np.uint8)).save(path)
    words = {"dataset": "folders", "folder": str(tmp_path / "pets"), "stream": "iid", "clients": 2, "batch": 3}
    (record,) = run(**words, size=8, model=tiny_module, device="cpu")
    assert record.domains == ("photo", "sketch")
    assert record.class_seen.sum((1, 2)).tolist() == [13, 7]
    with pytest.raises(UserError, match="data of your own have no usual model: add model="):
        run(**words, size=8)


def test_without_labels_the_classes_are_the_models(hospital, play):
    (record,) = play(Domains(hospital.names, hospital.images))
    assert record.class_seen.shape[2] == 3


def test_methods_that_study_the_source_get_images_of_it(hospital, play, tmp_path):
    eata = {"adapter": "eata", "aggregator": "local", "eata.images": 8, "batch": 4}
    with pytest.raises(UserError, match=r"which adapter eata asks for: use eata.fisher=0, source_images=PATH, or anot"):
        play(hospital, **eata)
    for k in range(8):
        Image.fromarray(hospital.images["ward"][k]).save(tmp_path / f"{k}.png")
    (record,) = play(hospital, **eata, source_images=str(tmp_path))
    assert f"images of the source are from {tmp_path}" in record.settings["notes"]
    np.save(tmp_path / "same.npy", hospital.images["ward"][:8])
    (same,) = play(hospital, **eata, source_images=str(tmp_path / "same.npy"))
    assert (record.entropy == same.entropy).all()
    (stand_in,) = play(hospital, **eata, source_images=8)
    assert any("stand in for those of the source" in note for note in stand_in.settings["notes"])


def test_images_of_the_source_that_nobody_uses_are_refused(hospital, play):
    with pytest.raises(UserError, match="source_images has no effect: no method"):
        play(hospital, source_images=4)
    assert len(play(hospital, adapter=["none", "eata"], aggregator="local", source_images=4)) == 2


def test_data_sets_of_torch_are_taken_as_they_are(hospital, play):
    def both(name):
        pixels = hospital.images[name].transpose(0, 3, 1, 2) / np.float32(255)
        return TensorDataset(torch.from_numpy(pixels), torch.from_numpy(hospital.labels[name]))

    (ours,) = play(hospital)
    (theirs,) = play({name: both(name) for name in hospital.names})
    assert theirs.domains == ours.domains
    assert (theirs.correct == ours.correct).all()


def test_images_that_domains_share_are_all_predicted_unless_fewer_slots_are_asked_for(domains, play):
    (record,) = play(domains, clients=4, batch=5)
    assert record.settings["slots"] == 3
    assert record.class_seen.sum((1, 2)).tolist() == [48, 48, 48]
    assert record.settings["notes"] == [
        "images shown again to fill up last batches, counted once: 12 of d0, 12 of d1, 12 of d2"
    ]
    (two,) = play(domains, clients=4, batch=5, slots=2)
    assert two.settings["notes"] == ["images not shown: 8 of the 48 of every domain"]
    assert two.class_seen.sum((1, 2)).tolist() == [40, 40, 40]
    (all_,) = play(domains, clients=4, batch=4)
    assert all_.settings["notes"] == []


def test_what_is_no_data_set_is_refused_in_one_line(hospital, play):
    for wrong in ([hospital, hospital], [hospital.images["ward"]], None, 3):
        with pytest.raises(UserError, match=r"^dataset is a \w+: give a name, names, one Domains, or") as refused:
            play(wrong)
        assert len(str(refused.value)) < 120
