"""`fedctta run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from typer.testing import CliRunner

from fedctta.cli import app
from fedctta.errors import UserError
from fedctta.runs.experiment import Result

QUICK = ["dataset=shapes-c", "domains=fog+contrast", "niid.clusters=2", "clients=4", "slots=2", "device=cpu"]


def test_run_prints_a_table_and_writes_report_and_json(home):
    words = ["run", *QUICK, "aggregator=local,fedctta", "seed=0,1", "--out", "here", "--json", "numbers.json", "-q"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "No-Adapt" in result.output
    assert "FedCTTA" in result.output
    assert (home / "here" / "report.html").stat().st_size > 10_000
    runs = json.loads((home / "numbers.json").read_text())["runs"]
    asked, added = runs[:4], runs[4:]
    assert [(r["aggregator"], r["seed"]) for r in asked] == [("local", 0), ("local", 1), ("fedctta", 0), ("fedctta", 1)]
    assert [(r["adapter"], r["seed"]) for r in added] == [("none", 0), ("none", 1)]
    assert all(r["rounds"] == 4 and r["model"] == "resnet8-w16" for r in runs)
    assert not list(home.rglob("*.part"))


def test_the_report_can_be_left_out_and_written_later(home, call):
    code, output, _ = call("run", *QUICK, "--out", "here", "--no-report", "-q")
    assert code == 0
    assert "No-Adapt" in output
    assert output.strip().endswith("--resume without --no-report writes the report")
    assert [path.name for path in (home / "here").iterdir() if path.is_dir()] == ["runs"]
    assert not (home / "here" / "report.html").exists()
    code, _, _ = call("run", *QUICK, "--out", "here", "--resume", "-q")
    assert code == 0
    assert (home / "here" / "report.html").exists()


def test_a_folder_is_no_file_for_numbers(home, call):
    (home / "there").mkdir()
    for place in (".", "there"):
        code, output, told = call("run", *QUICK, "--out", "here", "--json", place, "-q")
        assert (code, output) == (2, "")
        assert f"--json {place} is a folder: name a file" in told
    assert not (home / "here").exists()


def test_the_table_is_printed_before_files_are_written(home, call, monkeypatch):
    def fail(self, file):
        raise UserError("no room")

    monkeypatch.setattr(Result, "write_json", fail)
    code, output, _ = call("run", *QUICK, "--out", "here", "--json", "numbers.json", "-q")
    assert code == 2
    assert "No-Adapt" in output


def test_health_is_told_without_labels(home, call):
    code, output, _ = call("run", *QUICK, "adapter=tent", "aggregator=local", "check=2", "guard=reset", "-q")
    assert code == 0
    assert "Local on niid: accuracy" in output
    assert "% as estimated" in output
    code, _, told = call("run", *QUICK, "guard=reset", "-q")
    assert code == 2
    assert told.strip().endswith("give check=10")


def test_doing_nothing_can_be_left_out_once(home, call):
    code, output, _ = call("run", *QUICK, "--no-baseline", "-q")
    assert code == 0
    assert "No-Adapt" not in output
    code, _, told = call("run", *QUICK, "adapter=none,bn", "--no-baseline", "-q")
    assert code == 2
    assert told.startswith("fedctta: --no-baseline (baseline=False) has no effect")


def test_a_gpu_that_is_too_small_is_one_line(home, call, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("fedctta.runs.trial.simulate", full)
    code, _, told = call("run", *QUICK)
    assert code == 2
    assert told.strip().splitlines()[-1].startswith("fedctta: the GPU ran out of memory: use lift=loop")
    assert not [path for path in home.rglob("*") if path.suffix in (".html", ".part", ".safetensors")]


def test_a_damaged_cache_is_told(home, call):
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    victim = next((home / "home" / "shapes-c").glob("fog*.npy"))
    victim.write_bytes(victim.read_bytes()[:1000])
    code, _, told = call("run", *QUICK, "-q")
    assert code == 2
    assert "fedctta data check --repair" in told


def test_a_gpu_that_is_not_there_is_told(home, call, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, told = call("run", "dataset=shapes-c", "device=cuda")
    assert code == 2
    assert "device=cpu" in told


CTRL_C_IN_ROUND_20 = """
import os, signal
from fedctta.runs import progress
from fedctta.cli import main

progress._Watcher.__call__ = lambda self, t, tally: os.kill(os.getpid(), signal.SIGINT) if t == 20 else None
main()
"""


def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_numbers(home):
    python, words = sys.executable, ["run", *QUICK[:-2], "slots=20", "device=cpu", "-q"]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 600, "text": True, "capture_output": True}
    command = [python, "-m", "fedctta", *words]
    subprocess.run([*command, "--out", "whole", "--json", "whole.json"], **options, check=True)
    stopped = subprocess.run([python, "-c", CTRL_C_IN_ROUND_20, *words, "--out", "broken"], **options, check=False)
    assert stopped.returncode == 130
    assert "--resume" in stopped.stderr
    assert list((home / "broken" / "runs").glob("*.checkpoint"))
    subprocess.run([*command, "--out", "broken", "--resume", "--json", "broken.json"], **options, check=True)
    whole, broken = (json.loads((home / f"{n}.json").read_text())["runs"][0] for n in ("whole", "broken"))
    for key in ("accuracy", "accuracy_by_slot", "accuracy_by_client", "same_domain_weight", "bytes_up"):
        assert whole[key] == broken[key]
    assert not list((home / "broken" / "runs").glob("*.checkpoint"))
