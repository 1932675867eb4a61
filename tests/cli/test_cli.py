"""The command, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from fedctta.cli import app, main

QUICK = ["dataset=shapes-c", "domains=fog+contrast", "niid.clusters=2", "clients=4", "slots=2", "device=cpu"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache and an empty folder to work in."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch, capsys, *words):
    """Run the command in this process; return (exit code, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["fedctta", *words])
    with pytest.raises(SystemExit) as done:
        main()
    told = capsys.readouterr()
    return done.value.code or 0, told.out, told.err


def test_run_prints_a_table_and_writes_report_and_json(home):
    words = ["run", *QUICK, "aggregator=local,fedctta", "seed=0,1", "--out", "here", "--json", "numbers.json", "-q"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "FedCTTA" in result.output
    assert (home / "here" / "report.html").stat().st_size > 10_000
    runs = json.loads((home / "numbers.json").read_text())["runs"]
    assert [(r["aggregator"], r["seed"]) for r in runs] == [("local", 0), ("local", 1), ("fedctta", 0), ("fedctta", 1)]
    assert all(r["rounds"] == 4 and r["model"] == "resnet8-w16" for r in runs)
    assert not list(home.rglob("*.part"))


def test_a_gpu_that_is_too_small_is_one_line(home, monkeypatch, capsys):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("fedctta.runs.trial.simulate", full)
    code, _, told = call(monkeypatch, capsys, "run", *QUICK)
    assert code == 2
    assert told.strip().splitlines()[-1].startswith("fedctta: the GPU ran out of memory: use lift=loop")
    assert not [path for path in home.rglob("*") if path.suffix in (".html", ".part", ".safetensors")]


def test_methods_lists_everything_and_calls_the_oracle_no_method():
    told = CliRunner().invoke(app, ["methods"], catch_exceptions=False).output
    for name in ("bn", "grad", "fedavg", "fedctta", "niid", "case-fedctta", "resnet8", "wrn-28-10", "demo"):
        assert name in told
    before, after = told.split("upper bounds")
    assert "oracle" not in before
    assert "oracle" in after


def test_data_lists_and_checks(home):
    told = CliRunner().invoke(app, ["data"], catch_exceptions=False).output
    assert "embedded" in told
    assert "missing" in told
    assert "nothing is cached" in CliRunner().invoke(app, ["data", "check"], catch_exceptions=False).output
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    assert "ok" in CliRunner().invoke(app, ["data", "check"], catch_exceptions=False).output


def test_damage_is_found_told_and_repaired(home, monkeypatch, capsys):
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    victim = next((home / "home" / "shapes-c").glob("fog*.npy"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    code, _, told = call(monkeypatch, capsys, "data", "check")
    assert code == 2
    assert "--repair" in told
    CliRunner().invoke(app, ["data", "check", "--repair"], catch_exceptions=False)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "aggregater=local"], "did you mean aggregator"),
        (["run", "aggregator=fedcta"], "did you mean fedctta"),
        (["run", "adapter=bm"], "unknown adapter"),
        (["run", "stream=nid"], "did you mean niid"),
        (["run", "fedctta.temprature=1"], "did you mean temperature"),
        (["run", "fedctta.temperature=warm"], "is not a number"),
        (["run", "fedctta.temperature=0"], "must be above 0"),
        (["run", "demmo"], "did you mean demo"),
        (["run", "dataset=shapes-c", "batch=1"], "batch=2 or more"),
        (["run", "dataset=shapes-c", "clients=5000"], "fewer clients"),
        (["run", "dataset=shapes-c", "severity=9"], "use 1 to 5"),
        (["run", "dataset=shapes-c", "weights=nowhere.safetensors"], "no weights at nowhere.safetensors"),
        (["run", "dataset=shapes-c", "model=resnet9"], "did you mean resnext29 or resnet8"),
        (["run", "dataset=shapez-c"], "did you mean shapes-c"),
        (["run", "dataset=scene"], "did you mean scenes"),
        (["run", "dataset=scenes", "adapter=memo"], "works on whole images"),
        (["run", "dataset=scenes", "severity=3"], "severity=3 has no effect on scenes"),
        (["run", "dataset=masked"], "add folder=PATH"),
        (["run", "dataset=cifar10-c", "folder=nowhere"], "there is no folder nowhere"),
        (["run", "dataset=shapes-c", "domains=fogg"], "did you mean fog"),
        (["run", "dataset=shapes-c", "stream=custom"], "add custom.file=PATH"),
        (["run", "dataset=shapes-c", "--out", "/proc/nowhere"], "cannot write"),
        (["run", "seed"], "unknown preset 'seed'"),
        (["run", "out=runs"], "out= is no setting: for an option write --out"),
        (["run", "preset=paper"], "preset= is no setting"),
        (["reproduce", "fedctta-table1", "seeds=3"], "seeds= is no setting: for an option write --seeds"),
        (["reproduce", "fedctta-table1", "device=cpu"], "device= is no setting: for an option write --device"),
        (["reproduce", "fedctta-table1", "--gather", "--shard", "1/2"], "--gather shows all cells: leave --shard out"),
        (["pretrain", "model=resnet8", "datasett=shapes"], "did you mean dataset"),
        (["pretrain", "dataset=shapes", "epochs=-1"], "epochs"),
        (["pretrain", "dataset=shapes", "rounds=3"], "add federation=fedavg"),
        (["pretrain", "dataset=shapes", "federation=fedavg", "skew=0"], "skew=0.0 must be above 0"),
        (["pretrain", "dataset=shapes", "method=atq"], "did you mean atp"),
        (["pretrain", "dataset=shapes", "method=atp", "epochs=3"], "unknown option of method=atp 'epochs'"),
        (["pretrain", "dataset=shapes", "epochs=1,2"], "epochs has 2 values and a training takes one"),
        (["pretrain", "dataset=shapes", "method=atp", "corruptions=fog,snow"], "corruptions has 2 values"),
        (["reproduce", "fedctta-table1", "weights=auto,paper"], "weights has 2 values and a reproduction takes one"),
        (["run", "dataset=shapes-c", "domains=fog+snow+fog"], "domains names fog twice"),
        (["run", "dataset=scenes", "domains=night+night"], "domains names night twice"),
        (["run", "dataset=shapes-c", "folder=."], "drop folder"),
        (["pretrain", "dataset=shapes", "folder=."], "shapes are drawn here: drop folder"),
        (["run", "dataset=shapes-c", "aggregator=kin", "kin.strange=inf"], "kin.strange=inf must be finite"),
        (["run", "dataset=shapes-c", "aggregator=ugsa", "ugsa.beta=inf"], "ugsa.beta=inf must be finite"),
        (["run", "dataset=shapes-c", "noise=inf"], "noise=inf must be finite"),
        (["run", "dataset=shapes-c", "epsilon=1e-9"], "epsilon=1e-09 must be at least 1e-06"),
        (["run", "dataset=shapes-c", "aggregator=ugsa", "ugsa.beta=1e300"], "ugsa.beta=1e300 must be finite (up to"),
        (
            ["run", "dataset=shapes-c", "model=json:loads"],
            "model=json:loads cannot be called: TypeError: loads() missing",
        ),
        (["run", "dataset=shapes-c", "model=os:nothing"], "cannot import model=os:nothing: AttributeError"),
        (["pretrain", "dataset=shapes", "lr=inf"], "lr=inf must be finite"),
        (["pretrain", "dataset=shapes", "model=unet"], "unet predicts every pixel and shapes has one class an image"),
        (["pretrain", "dataset=shapes", "method=atp", "model=unet"], "unet predicts every pixel"),
        (["data", "fetch", "cifar11"], "did you mean cifar10"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(words, said, home, monkeypatch, capsys):
    code, out, told = call(monkeypatch, capsys, *words)
    assert code == 2
    assert said in told
    assert told.startswith("fedctta: ")
    assert told.count("\n") == 1
    assert "Traceback" not in out + told
    assert not list(home.rglob("*.part"))


def test_a_damaged_cache_is_told(home, monkeypatch, capsys):
    CliRunner().invoke(app, ["data", "fetch", "shapes-c"], catch_exceptions=False)
    victim = next((home / "home" / "shapes-c").glob("fog*.npy"))
    victim.write_bytes(victim.read_bytes()[:1000])
    code, _, told = call(monkeypatch, capsys, "run", *QUICK, "-q")
    assert code == 2
    assert "fedctta data check --repair" in told


def test_a_gpu_that_is_not_there_is_told(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, told = call(monkeypatch, capsys, "run", "dataset=shapes-c", "device=cuda")
    assert code == 2
    assert "device=cpu" in told


def test_pretraining_writes_weights_and_a_card(home, monkeypatch):
    words = ["pretrain", "model=resnet8-w16", "dataset=shapes", "epochs=1", "batch=1000", "out=mine.safetensors"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "clean accuracy" in told
    card = json.loads((home / "mine.json").read_text())
    assert card["recipe"]["epochs"] == 1
    assert len(card["accuracy_by_corruption"]) == 15
    words = ["run", *QUICK, "weights=mine.safetensors", "-q"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0


def test_what_was_trained_is_what_the_next_command_uses(home, monkeypatch):
    """The two commands of docs/pretraining.md, without the training itself."""
    monkeypatch.setattr("fedctta.training.pretraining.train_federated", lambda *args, bf16: None)
    monkeypatch.setattr("fedctta.training.pretraining.evaluate", lambda *args: 0.25)
    words = ["pretrain", "model=resnet8-w16", "dataset=shapes", "federation=fedavg", "source_clients=10"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "use them with weights=fedavg" in told
    words = ["run", *QUICK, "weights=fedavg", "--json", "numbers.json", "-q"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "your own training" in told
    source = json.loads((home / "numbers.json").read_text())["runs"][0]["source"]
    assert (source["weights"], source["file"]) == ("cache", "resnet8-w16-shapes-fedavg.safetensors")
    assert source["accuracy"] == 0.25


def test_a_method_learns_and_its_adapter_finds_what_it_learnt(home):
    words = ["pretrain", "method=atp", "dataset=shapes", "clients=4", "images=10", "batch=4", "rounds=2", "device=cpu"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).output
    (path,) = (home / "home" / "weights").glob("atp-*.safetensors")
    assert f"rates: {path}" in told
    assert "adapter=atp atp.rates=auto" in told
    told = CliRunner().invoke(app, [*words, "out=mine.safetensors"], catch_exceptions=False).output
    assert "atp.rates=mine.safetensors" in told
    for rates in ("auto", "mine.safetensors"):
        run = ["run", *QUICK, "adapter=atp", f"atp.rates={rates}", "aggregator=local", "-q"]
        assert CliRunner().invoke(app, run, catch_exceptions=False).exit_code == 0


CTRL_C_IN_ROUND_20 = """
import os, signal
from fedctta.runs import progress
from fedctta.cli import main

progress._Watcher.__call__ = lambda self, t, tally: os.kill(os.getpid(), signal.SIGINT) if t == 20 else None
main()
"""


def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_numbers(home):
    python, words = sys.executable, ["run", *QUICK[:-2], "slots=20", "device=cpu", "-q"]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 120, "text": True, "capture_output": True}
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
