"""From a description to a result, on tiny data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import fedctta
from fedctta.aggregators.fedctta import FedCTTA
from fedctta.data.corrupted import Domains
from fedctta.errors import UserError
from fedctta.runs.experiment import run

SMALL = {"clients": 4, "slots": 3, "batch": 4, "niid.clusters": 2, "device": "cpu"}


@pytest.fixture
def play(domains, tiny_module):
    def play(**values):
        return run(**{"dataset": domains, "model": tiny_module, **SMALL, **values})

    return play


def test_every_combination_is_run_once_on_the_same_stream(play):
    result = play(adapter=["none", "bn"], aggregator=["local", "fedavg", "oracle"], seed=[0, 1])
    names = [(s["adapter"], s["aggregator"], s["seed"]) for s in result.summaries()]
    assert len(names) == len(set(names)) == 8  # without adaptation there is nothing to aggregate
    for seed in (0, 1):
        shown = [r for r in result if r.settings["seed"] == seed]
        assert all((r.domain == shown[0].domain).all() for r in shown)


def test_two_wordings_of_one_experiment_are_one_run(play, tmp_path):
    result = play(aggregator="fedavg", seed=[0, 1], device=["auto", "cpu"], slots=[None, 3])
    assert [record.settings["seed"] for record in result] == [0, 1]
    assert {row.label: row.cells[0].seeds for row in result.table().rows} == {"No-Adapt": 2, "FedAvg": 2}
    lifted = play(aggregator="fedavg", seed=[0, 1], lift=["auto", "loop"], out=tmp_path)
    assert {cell.seeds for row in lifted.table().rows for cell in row.cells} == {2}
    assert lifted.write_report(tmp_path).exists()


def test_the_summary_holds_what_was_promised(play):
    summary, idle = play(aggregator="fedctta").summaries()
    assert (idle["adapter"], idle["images"]) == ("none", summary["images"])
    promised = """dataset model adapter aggregator stream seed rounds images accuracy accuracy_by_domain
        accuracy_by_client accuracy_by_slot same_domain_weight bytes_up bytes_down seconds peak_memory_mb"""
    assert set(promised.split()) <= set(summary)
    assert summary["rounds"] == 9
    assert summary["images"] == 9 * 4 * 4
    assert 0 <= summary["accuracy"] <= 1
    assert np.isclose(summary["accuracy"], np.mean(summary["accuracy_by_slot"]))
    assert np.isclose(summary["accuracy"], np.mean(summary["accuracy_by_client"]))
    assert set(summary["accuracy_by_domain"]) == {"d0", "d1", "d2"}
    assert summary["fedctta"]["metric"] == "euclid"
    assert summary["sh"] == 0.5


def test_a_result_has_tables_matrices_and_a_plot(play, tmp_path):
    result = play(aggregator=["local", "fedctta"])
    assert [row.label for row in result.table().rows] == ["No-Adapt", "Local", "FedCTTA"]
    assert result.records[1].collaboration.shape == (9, 4, 4)
    assert np.allclose(result.records[1].collaboration.sum(2), 1, atol=1e-6)
    assert isinstance(result.plot(), Figure)
    page = result.write_report(tmp_path)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    result.write_json(tmp_path / "x.json")
    assert len(json.loads((tmp_path / "x.json").read_text())["runs"]) == 3


def test_methods_may_be_objects(play):
    named = play(**{"aggregator": "fedctta", "fedctta.temperature": 0.5})
    given = play(aggregator=FedCTTA(temperature=0.5))
    assert given.summaries()[0]["fedctta"] == named.summaries()[0]["fedctta"]
    assert (given.records[0].correct == named.records[0].correct).all()
    with pytest.raises(UserError, match="twice"):
        play(aggregator=[FedCTTA(), FedCTTA(ema=0.5)])


def test_a_method_of_ones_own_is_one_class(play):
    @dataclass(frozen=True)
    class Half(fedctta.Aggregator):
        """Keep a share of oneself."""

        name: ClassVar[str] = "half"
        share: float = 0.5

        def collaborate(self, server, uploads, memory):
            n = len(uploads.active)
            return self.share * torch.eye(n) + (1 - self.share) / n, memory

    result = play(aggregator=Half(share=0.25))
    assert result.summaries()[0]["half"] == {"share": 0.25}
    assert result.records[0].collaboration[0, 0, 0] == pytest.approx(0.25 + 0.75 / 4)


def test_a_mistake_in_a_method_of_ones_own_is_one_line(play, tmp_path):
    class Bare(fedctta.Aggregator):
        name: ClassVar[str] = "bare"

    @dataclass(frozen=True)
    class Wrong(fedctta.Aggregator):
        name: ClassVar[str] = "wrong"
        forgets: bool = False

        def collaborate(self, server, uploads, memory):
            return torch.eye(4) if self.forgets else (torch.eye(3), memory)

    for given, said in [
        (Wrong, "aggregator=Wrong is a class: call it, aggregator=Wrong()"),
        (Bare(), r"Bare is no dataclass: write @dataclass\(frozen=True\) above it"),
        (Wrong(), r"collaborate of wrong returned W\[3, 3\]: return W\[4, 4\], a tensor in float32"),
        (Wrong(forgets=True), r"collaborate of wrong must return two things: W\[4, 4\] and the memory"),
    ]:
        with pytest.raises(UserError, match=said):
            play(aggregator=given)
    with pytest.raises(UserError, match="jobs need a folder"):
        run(dataset="shapes-c", aggregator=Wrong(), jobs=2, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_cannot_take_the_name_of_one_of_the_packages(play):
    @dataclass(frozen=True)
    class Mine(fedctta.Aggregator):
        """Not the real one."""

        name: ClassVar[str] = "fedavg"

    with pytest.raises(UserError, match=r"give .*Mine another name"):
        play(aggregator=Mine())


def test_the_same_seed_gives_the_same_numbers(play):
    one, two, other = play(seed=3), play(seed=3), play(seed=4)
    assert (one.records[0].correct == two.records[0].correct).all()
    assert (one.records[0].correct != other.records[0].correct).any()


def changed(domains, images):
    return Domains(domains.names, {**domains.images, "d1": images}, domains.labels, domains.classes, ())


def test_images_of_another_kind_are_refused(domains, play):
    good = domains.images["d1"]
    spoilt = good.astype(np.float32)
    spoilt[0, 0, 0, 0] = np.nan
    for images, said in [
        (good.astype(np.float32), "'d1' are float32, those of 'd0' uint8: give one type"),
        (spoilt, "hold NaN or infinity: give finite values"),
        (good[..., :1], r"different sizes, 'd0' \(8, 8, 3\) and 'd1' \(8, 8, 1\)"),
        (good[:40], r"have shape \(40, 8, 8, 3\) and there are 48 labels"),
        (np.zeros((48, 9, 9, 3), np.uint8), "different sizes"),
    ]:
        with pytest.raises(UserError, match=said):
            play(dataset=changed(domains, images))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.full(48, 3)}, "Domains.labels hold 3: give 0 to 2, for there are 3 classes"),
        ({"labels": np.full(48, -1)}, "Domains.labels hold -1"),
        ({"labels": np.zeros(48)}, "Domains.labels are float64"),
        ({"labels": np.zeros((48, 1), np.int64)}, r"Domains.labels are int64 \(48, 1\)"),
        ({"names": ("d0", "d1", "d0")}, "Domains.names names d0 twice"),
    ],
)
def test_labels_and_names_that_would_spoil_numbers_are_refused(domains, play, change, said):
    with pytest.raises(UserError, match=said):
        play(dataset=replace(domains, **change))


def test_a_sweep_for_an_object_is_run_and_keeps_its_other_parameters(play):
    result = play(aggregator=FedCTTA(ema=0.5, temperature=2.0), **{"fedctta.temperature": [0.25, 4]})
    assert [record.settings["fedctta"]["temperature"] for record in result] == [0.25, 4.0]
    assert {record.settings["fedctta"]["ema"] for record in result} == {0.5}
    (record,) = play(aggregator=FedCTTA(ema=0.5, temperature=2.0))
    assert record.settings["fedctta"]["temperature"] == 2.0


def test_an_object_is_more_than_a_preset(play, tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text('[run]\naggregator = ["fedavg", "fedctta"]\n[run.fedctta]\ntemperature = 0.5\n')
    (record,) = play(preset=str(preset), aggregator=FedCTTA(temperature=2.0))
    assert record.settings["fedctta"]["temperature"] == 2.0


def test_an_object_with_an_infinite_parameter_is_refused(play):
    with pytest.raises(UserError, match=r"fedctta\.temperature=inf must be finite"):
        play(aggregator=FedCTTA(temperature=np.inf))


def test_json_and_report_hold_infinities(play, tmp_path):
    result = play(samples="dirichlet", **{"dirichlet.delta": np.inf}, noise=1e-6, aggregator="fedavg")
    result.write_json(tmp_path / "runs.json")

    def refuse(constant):
        pytest.fail(f"{constant} is no JSON")

    told, _ = json.loads((tmp_path / "runs.json").read_text(), parse_constant=refuse)["runs"]
    assert told["dirichlet"]["delta"] == "inf"
    assert told["privacy"]["epsilon"] == "inf"
    assert told["accuracy"] == result.records[0].accuracy
    assert result.write_report(tmp_path / "report").is_file()
    row, _ = pq.read_table(tmp_path / "report" / "results.parquet").to_pylist()
    assert row["dirichlet.delta"] == np.inf


def test_what_a_sweep_lacks_is_told_before_its_first_run(play, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("fedctta.runs.experiment.run_one", None)
    for values, said in (
        ({"adapter": ["bn", "atp"]}, "no rates of atp for this model"),
        ({"aggregator": ["fedavg", "ugsa"], "robust": "median"}, "robust=median has no effect on ugsa"),
        ({"adapter": ["bn", "tent"], "noise": 1.0}, "cover the statistics of one batch only"),
        ({"samples": ["disjoint", "overlap"], "lift": ["auto", "graph"]}, "lift=graph needs a CUDA GPU"),
        ({"clients": [4, 1000]}, "fewer clients"),
        ({"liars": [0, 9]}, "leaves nobody honest"),
    ):
        with pytest.raises(UserError, match=said):
            play(**values, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_does_not_fit_is_refused(play):
    with pytest.raises(UserError, match="3 classes"):
        play(model=nn.Sequential(nn.Flatten(), nn.Linear(192, 7)))
    with pytest.raises(UserError, match="cannot take images of 3x8x8"):
        play(model=nn.Sequential(nn.Flatten(), nn.Linear(100, 3)))
    with pytest.raises(UserError, match="needs BatchNorm"):
        play(model=nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Linear(2, 2).state_dict(), "model is a dictionary, perhaps a state dict: build the model, and load it"),
        (lambda: 1 / 0, "model is a function: call it, and give the torch.nn.Module that it returns"),
        (nn.Identity, "model is a type: call it"),
        ([nn.Identity()], "model is a list: give one torch.nn.Module, a name, or names"),
        (None, "model is a NoneType: give one torch.nn.Module"),
    ],
)
def test_what_is_no_model_is_one_line(play, model, said):
    with pytest.raises(UserError, match=said) as refused:
        play(model=model)
    assert len(str(refused.value)) < 120


def test_wrong_numbers_are_refused_before_anything_runs(play):
    with pytest.raises(UserError, match="batch=2 or more"):
        play(batch=1)
    with pytest.raises(UserError, match="fewer clients"):
        play(clients=1000)
    with pytest.raises(UserError, match="at least 1"):
        play(interval=0)
    with pytest.raises(UserError, match="did you mean fedctta"):
        play(aggregator="fedcta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_cpu_computes_in_float32_and_the_record_says_so(play):
    for precision, told in (("tf32", True), ("bf16", True), ("float32", False)):
        notes = play(aggregator="local", precision=precision).records[0].settings["notes"]
        assert (f"precision={precision} is for GPUs: computed in float32 on a CPU" in notes) is told


def test_a_missing_gpu_is_told(play):
    with pytest.raises(UserError, match="no CUDA GPU"):
        play(device="cuda")


def test_a_folder_that_cannot_be_written_is_told_before_anything_runs(play, tmp_path, monkeypatch):
    monkeypatch.setattr("fedctta.runs.trial.simulate", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        play(out=tmp_path / "file")


def test_a_model_may_be_imported_by_name(play, tmp_path, monkeypatch):
    (tmp_path / "my_model_for_a_test.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 3, 8), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert len(play(model="my_model_for_a_test:make", weights="random")) == 1
    with pytest.raises(UserError, match="not trained"):
        play(model="my_model_for_a_test:make")
    with pytest.raises(UserError, match="write module:function"):
        play(model="my_model_for_a_test:nothing")
