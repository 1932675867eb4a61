"""What a user can mend is told in one line, for every command."""

from __future__ import annotations

import pytest


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
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(words, said, home, call):
    code, out, told = call(*words)
    assert code == 2
    assert said in told
    assert told.startswith("fedctta: ")
    assert told.count("\n") == 1
    assert "Traceback" not in out + told
    assert not list(home.rglob("*.part"))
