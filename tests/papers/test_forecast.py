"""What a reproduction would do, told before it is done."""

from __future__ import annotations

from pathlib import Path

from fedctta.papers.forecast import Forecast
from fedctta.papers.reproduction import foresee, reproduce
from fedctta.papers.sources import Training

TABLE = """
run = { dataset = "shapes-c", domains = "fog", clients = 2, slots = 1, stream = "iid", device = "cpu" }
[[panel]]
columns.IID = {}
rows.Local = { aggregator = "local" }
rows.FedAvg = { aggregator = "fedavg" }
"""


def test_kept_runs_are_counted_and_the_rest_is_extrapolated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(TABLE)
    (before,) = foresee("mine.toml", seeds=2)
    assert (before.runs, before.seconds, before.minutes) == (4, (), None)
    assert not Path("runs").exists()
    result = reproduce("mine.toml")
    (after,) = foresee("mine.toml", seeds=2)
    took = sum(run.seconds for runs in result.tables[0].runs.values() for run in runs)
    assert len(after.seconds) == 2
    assert after.minutes == 2 * (took / 2) / 60


def test_the_plan_in_words():
    training = Training({"model": "unet", "train": "drive"}, Path("x"))
    lines = list(Forecast("vessels", 1200, (), (training,)).told())
    assert lines[0] == "vessels: 1,200 runs, 0 kept, 1,200 to play"
    assert lines[2] == "    fedctta pretrain model=unet train=drive"
    assert "not known" in lines[3]
    assert list(Forecast("vessels", 4, (30.0, 90.0), ()).told())[1].startswith("  about 2 minutes")
    assert len(list(Forecast("vessels", 1, (30.0,), ()).told())) == 1
