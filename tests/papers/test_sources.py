"""Source models of a preset: what is missing is trained once, into the cache."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from fedctta.errors import NoRoom, UserError
from fedctta.papers import sources
from fedctta.papers.sources import find_trained, find_trainings, split_name, train_sources
from fedctta.papers.tables import Paper, load_paper
from fedctta.runs.settings import Experiment

PAPER = Paper("mine", "", "", (), pretrain={"lr": 0.01, "quick": {"epochs": 1}})


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path))


def pacs(weights, **more):
    return Experiment(dataset="pacs", model="efficientnet-lite0", size=64, weights=weights, **more)


def keep(path, size=64):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    path.with_suffix(".json").write_text(json.dumps({"size": size}))


def test_names_are_split_into_domains_and_variant():
    assert split_name("photo+sketch-quick", PAPER) == (["photo", "sketch"], "quick")
    assert split_name("person-01+person-02", PAPER) == (["person-01", "person-02"], "")
    assert split_name("auto", PAPER) == ([], "")
    assert split_name("quick", PAPER) == ([], "quick")


def test_the_words_are_those_of_the_command(tmp_path):
    whole, quick = find_trainings(PAPER, [pacs("photo+sketch"), pacs("photo-quick"), pacs("photo+sketch", seed=1)])
    start = "fedctta pretrain model=efficientnet-lite0 dataset=pacs size=64 train="
    assert whole.command == f"{start}photo+sketch lr=0.01"
    assert quick.command == f"{start}photo lr=0.01 epochs=1 out={quick.path}"
    assert quick.path == tmp_path / "weights" / "efficientnet-lite0-pacs-photo-quick.safetensors"


def test_data_without_domains_are_trained_as_they_are():
    experiment = Experiment(dataset="tiny-imagenet-c", model="resnet18", device="cpu")
    (only,) = find_trainings(PAPER, [experiment])
    assert only.command == "fedctta pretrain model=resnet18 dataset=tiny-imagenet lr=0.01 device=cpu"


def test_files_unknown_domains_and_presets_that_train_nothing_are_left_alone():
    assert not find_trainings(PAPER, [pacs("/tmp/mine.safetensors"), pacs("dogs"), pacs("auto")])
    assert not find_trainings(Paper("mine", "", "", ()), [pacs("photo")])


def test_weights_that_are_there_are_kept_and_those_of_another_size_refused():
    (training,) = find_trainings(PAPER, [pacs("photo")])
    assert not find_trained(PAPER, [pacs("photo")])
    keep(training.path)
    assert find_trained(PAPER, [pacs("photo"), pacs("sketch")]) == [pacs("photo")]
    assert not find_trainings(PAPER, [pacs("photo")])
    keep(training.path, size=128)
    with pytest.raises(UserError, match="was trained on images of size 128 and the runs show 64"):
        find_trainings(PAPER, [pacs("photo")])


def test_each_is_trained_once_and_no_lock_is_left(monkeypatch, tmp_path):
    trained, told = [], []

    def pretrain(words):
        trained.append(words["train"])
        (tmp_path / "weights" / f"efficientnet-lite0-pacs-{words['train']}.safetensors").write_bytes(b"")

    monkeypatch.setattr(sources, "pretrain", pretrain)
    trainings = find_trainings(PAPER, [pacs("photo"), pacs("sketch")])
    for _ in range(2):
        train_sources(trainings, told.append)
    assert trained == ["photo", "sketch"]
    assert told[0].startswith("[1/2] fedctta pretrain")
    assert not list(tmp_path.rglob("*.lock"))


def test_a_lock_is_deleted_while_it_is_held_also_after_a_failure(monkeypatch, tmp_path):
    deleted, unlink = [], Path.unlink

    def unlink_held(path, missing_ok=False):
        with path.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        deleted.append(path.suffix)
        unlink(path, missing_ok)

    def pretrain(words):
        raise UserError("no images")

    monkeypatch.setattr(Path, "unlink", unlink_held)
    monkeypatch.setattr(sources, "pretrain", pretrain)
    train_sources(find_trainings(PAPER, [pacs("photo")]), lambda line: None)
    assert deleted == [".lock"]
    assert not list(tmp_path.rglob("*.lock"))


def test_one_that_cannot_be_trained_keeps_no_other_from_it(monkeypatch):
    tried = []

    def pretrain(words):
        tried.append(words["train"])
        if words["train"] == "photo":
            raise UserError("no images")

    monkeypatch.setattr(sources, "pretrain", pretrain)
    photo, sketch = find_trainings(PAPER, [pacs("photo"), pacs("sketch")])
    assert train_sources([photo, sketch], lambda line: None) == {photo.path: "no images"}
    assert tried == ["photo", "sketch"]


def test_where_all_are_needed_none_is_trained_after_a_failure(monkeypatch):
    tried = []

    def pretrain(words):
        tried.append(words["train"])
        raise NoRoom("no room")

    monkeypatch.setattr(sources, "pretrain", pretrain)
    with pytest.raises(NoRoom, match="no room"):
        train_sources(find_trainings(PAPER, [pacs("photo"), pacs("sketch")]), lambda line: None, stop=True)
    assert tried == ["photo"]


def test_several_are_trained_at_once(monkeypatch):
    photo, sketch = find_trainings(PAPER, [pacs("photo"), pacs("sketch")])
    asked, told, prepared = [], [], []

    def prepare(words):
        prepared.append(words["dataset"])
        raise UserError("no images")  # which the trainings tell themselves

    def work_at_once(work, items, jobs, on_done):
        asked.append((list(items), jobs))
        on_done(sketch, "no images")
        return ["", "no images"]

    monkeypatch.setattr(sources, "prepare", prepare)
    monkeypatch.setattr(sources, "work_at_once", work_at_once)
    assert train_sources([photo, sketch], told.append, 2) == {sketch.path: "no images"}
    assert asked == [([photo, sketch], 2)]
    assert prepared == ["pacs"]  # once
    assert [line.split("train=")[1].split()[0] for line in told] == ["photo", "sketch"]
    with pytest.raises(UserError, match="no images"):
        train_sources([photo, sketch], told.append, 2, stop=True)


def test_pacs_trains_nine_models_in_full_and_fewer_for_quick():
    paper = load_paper("natural-pacs")
    for quick, count in ((False, 9), (True, 2)):
        cells = [cell for panel in paper.panels for cell in paper.cells(panel, quick, {}).values()]
        assert len(find_trainings(paper, cells)) == count
