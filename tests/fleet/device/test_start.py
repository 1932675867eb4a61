"""Whole devices, as processes that are killed and as a command that is mistyped."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedctta.adapters.bn import BatchStatistics
from fedctta.adapters.recall import Recall
from fedctta.cli import console, main
from fedctta.cli.device import read_parameters
from fedctta.errors import UserError
from fedctta.fleet.device import start
from fedctta.fleet.device.device_state import StreamPosition
from fedctta.fleet.device.equipment import equip
from fedctta.fleet.device.handover import Handover, Snapshot
from fedctta.fleet.device.request_handler import RequestHandler
from fedctta.fleet.device.start import Settings, _adaptation, _handler, _private_uploads, _rename, add_noise, run_device
from fedctta.fleet.transport.framing import exchange
from fedctta.fleet.transport.wire import Parcel, pack, unpack
from fedctta.uploads.privacy import noise_for

MODEL = """
import torch
from torch import nn

def make():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 3))
"""
IMAGES = 600


@pytest.fixture
def settings(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    random = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for k in range(IMAGES):
        image = random.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(image).save(tmp_path / "images" / f"{k:04d}.bmp")
    where = f"folder:{tmp_path}/images"
    words = {"adapter": "bn", "parameters": {"momentum": 0.1}}
    return Settings("own_model:make", where, tmp_path / "state", batch=4, save_every=3, **words)


def watching(settings):
    return replace(settings, data=settings.data.replace("folder", "watch", 1), patience=0.1)


def begin(settings):
    process = multiprocessing.get_context("fork").Process(target=run_device, args=(settings,), daemon=True)
    process.start()
    return process


def until(condition, seconds=120.0):
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("kind", ["folder", "watch"])
def test_killed_again_and_again_it_predicts_every_image_once(settings, kind):
    out = settings.state / "predictions.jsonl"
    folder = settings
    settings = folder if kind == "folder" else watching(folder)
    for count in (40, 160, 280, 400):
        process = begin(settings)
        until(lambda count=count: lines(out) >= count)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with out.open("ab") as file:
            file.write(b'{"id": "torn')  # as a power cut may leave it
    process = begin(settings)
    until(lambda: lines(out) >= IMAGES)
    os.kill(process.pid, signal.SIGTERM)  # a folder's device is done, one that watches is told to stop
    process.join(60)
    assert process.exitcode in (0, -signal.SIGTERM)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == IMAGES
    assert len({row["id"] for row in rows}) == IMAGES
    numbers = [row["batch"] for row in rows]
    assert numbers == sorted(numbers)
    assert max(numbers.count(n) for n in set(numbers)) <= 4
    assert run_device(folder).images == IMAGES
    assert len(out.read_text().splitlines()) == IMAGES


def test_killed_while_it_writes_parquet(settings):
    folder = settings.state.parent / "p.parquet"
    settings = replace(settings, out=folder)
    for count in (100, 300):
        process = begin(watching(settings))  # which does not come to its end, where rows become a part
        until(lambda count=count: sum(map(lines, folder.glob("_rows*"))) >= count)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert run_device(settings).images == IMAGES
    ids = pq.read_table(folder)["id"].to_pylist()
    assert len(ids) == len(set(ids)) == IMAGES


def test_it_answers_at_its_door_while_it_works(settings):
    socket = settings.state.parent / "s"
    settings = replace(settings, data=settings.data.replace("folder", "watch"), socket=socket, name="eye")
    process = begin(settings)
    until(lambda: lines(settings.state / "predictions.jsonl") > 0)

    def ask(parcel):
        return unpack(exchange(socket, pack(parcel).tobytes(), 10), 1 << 20)

    assert ask(Parcel("hello")).note["device"] == "eye"
    note = {"ask": 1, "run": "r", "aggregator": "fedavg"}
    first = ask(Parcel("step", 0, note))
    assert first.kind == "upload"
    assert ask(Parcel("step", 1, note, first.arrays)).note["received"] == 1
    until(lambda: lines(settings.state / "predictions.jsonl") >= IMAGES)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 0
    assert not socket.exists()


def test_two_devices_do_not_share_a_state(settings):
    settings = replace(settings, data=settings.data.replace("folder", "watch"))
    process = begin(settings)
    until(lambda: (settings.state / "device.safetensors").exists())
    with pytest.raises(UserError, match="another device runs"):
        run_device(settings)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(UserError, match="another model"):
        run_device(replace(settings, parameters={"momentum": 0.2}))


def test_a_second_device_that_started_at_the_same_time_leaves_the_first_ones_files(settings, monkeypatch):
    settings = replace(settings, data=settings.data.replace("folder", "watch"))
    first, make = [], start.equip

    def slowly(*words, **named):
        """Let the first device come first, which forks before it gets here."""
        found = make(*words, **named)
        monkeypatch.setattr(start, "equip", make)
        first.append(begin(settings))
        until(lambda: lines(settings.state / "predictions.jsonl") > 0)
        return found

    monkeypatch.setattr(start, "equip", slowly)
    with pytest.raises(UserError, match="another device runs"):
        run_device(settings)
    until(lambda: lines(settings.state / "predictions.jsonl") >= IMAGES)
    assert {"lock", "predictions.jsonl"} <= {path.name for path in settings.state.iterdir()}
    with pytest.raises(UserError, match="another device runs"):
        run_device(settings)
    os.kill(first[0].pid, signal.SIGKILL)
    first[0].join()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "--batch 0 must be at least 1"),
        ({"min_batch": 0}, "--min-batch 0"),
        ({"name": ""}, "--name"),
        ({"lockstep": True}, "add --socket"),
        ({"window": 1}, "--window 1 must be at least 2"),
        ({"check": -1}, "--check -1 must be at least 0"),
        ({"guard": "freeze", "check": 0}, "--guard freeze acts on what checks find and --check 0 asks for none"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be at least 1e-06"),
        ({"epsilon": 4.0, "delta": 2.0}, "delta=2.0 must lie between 0 and 1"),
        ({"epsilon": 4.0, "guard": "reset"}, "--guard reset lets images decide what is sent"),
        ({"delta": 1e-6}, "--delta 1e-06 has no effect without --epsilon"),
        ({"budget": 8.0}, "--budget 8.0 limits what uploads of --epsilon add up to"),
        ({"budget": 2.0, "epsilon": 4.0}, "give a smaller --epsilon"),
        ({"budget": nan, "epsilon": 4.0}, "--budget nan must be a finite number"),
        ({"epsilon": nan}, "--epsilon nan must be a finite number"),
        ({"epsilon": 4.0, "delta": nan}, "--delta nan must be a finite number"),
        ({"pace": nan}, "--pace nan must be a finite number"),
        ({"patience": inf}, "--patience inf must be a finite number"),
        ({"patience": -3.0}, "--patience -3.0 must be at least 0"),
        ({"patience": 2.0}, "--patience 2.0 has no effect without --data watch:PATH: drop it"),
        ({"epsilon": 4.0}, "--epsilon 4.0 has no effect without --socket, as nothing is sent: drop it"),
        ({"min_batch": 5}, "--min-batch 5 has no effect without --socket"),
        ({"epsilon": 4.0, "lockstep": True, "socket": Path("s")}, "would send an interrupted batch twice"),
    ],
)
def test_settings_that_cannot_be_are_told(settings, changes, said):
    with pytest.raises(UserError, match=said):
        replace(settings, **changes)


def test_the_guard_resets_unless_the_device_is_to_equal_a_simulation(settings, tmp_path):
    assert settings.guard_or_usual == "reset"
    lockstep = replace(settings, lockstep=True, socket=tmp_path / "s")
    assert lockstep.guard_or_usual == "off"
    assert replace(lockstep, guard="reset").guard_or_usual == "reset"
    assert replace(lockstep, lockstep=False, epsilon=4.0).guard_or_usual == "off"


def test_every_image_of_a_folder_is_predicted_also_one_by_one_and_the_last(settings, tmp_path, caplog):
    caplog.set_level("INFO")
    (tmp_path / "few").mkdir()
    for path in sorted((tmp_path / "images").iterdir())[:36]:
        path.rename(tmp_path / "few" / path.name)
    settings = replace(settings, data=f"folder:{tmp_path}/few", adapter="tent", parameters={})
    for batch, adapted_to in ((1, 36 // 16), (7, 5)):  # the last image of five batches of 7 is seen among others
        state = tmp_path / f"state-{batch}"
        assert run_device(replace(settings, batch=batch, state=state)).images == 36
        rows = [json.loads(line) for line in (state / "predictions.jsonl").read_text().splitlines()]
        assert len({row["id"] for row in rows}) == 36
        assert json.loads((state / "health.json").read_text())["batches"] == adapted_to
    assert caplog.messages[-1].startswith("device-0: the adapted model answers; estimated accuracy")


def test_a_device_that_is_refused_leaves_no_folder(settings, tmp_path):
    refused = replace(settings, classes="a,b,c,d")
    with pytest.raises(UserError, match="check --model and --classes"):
        run_device(refused)
    assert not settings.state.exists()
    run_device(replace(settings, data=f"folder:{tmp_path}/images", batch=300))
    with pytest.raises(UserError, match="another model"):
        run_device(replace(settings, parameters={"momentum": 0.2}))
    assert lines(settings.state / "predictions.jsonl") == IMAGES


def test_parameters_are_those_of_the_adapter():
    assert read_parameters("bn", ["bn.momentum=0.1"]) == {"momentum": "0.1"}
    with pytest.raises(UserError, match="no effect"):
        read_parameters("bn", ["tent.lr=0.1"])
    with pytest.raises(UserError, match="cannot read"):
        read_parameters("bn", ["momentum"])


def test_the_command_by_itself_is_light_and_tells_errors_in_a_line(tmp_path):
    words = ["--model", "resnet8-w16", "--data", "folder:nowhere", "--state", str(tmp_path)]
    command = [sys.executable, "-m", "fedctta", "device", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "fedctta: there is no folder nowhere: check the path in --data"
    assert "Traceback" not in done.stderr


def test_lock_step_is_refused_for_a_method_that_never_waits(settings, tmp_path):
    waiting = replace(settings, adapter="recall", parameters={}, lockstep=True, socket=tmp_path / "door")
    with pytest.raises(UserError, match="lock-step has no effect"):
        run_device(waiting)
    assert not waiting.state.exists()


def test_noise_is_refused_for_a_method_without_it(settings):
    settings = replace(settings, socket=settings.state.parent / "s")
    with pytest.raises(UserError, match="--epsilon has no effect on adapter 'bn', which sends more than one batch's"):
        run_device(replace(settings, epsilon=4.0))  # momentum 0.1: older batches, too
    with pytest.raises(UserError, match="--epsilon has no effect on adapter 'tent'"):
        run_device(replace(settings, epsilon=4.0, adapter="tent", parameters={}))
    with pytest.raises(UserError, match="--budget has no effect on 'recall'"):
        run_device(replace(settings, epsilon=4.0, budget=8.0, adapter="recall", parameters={}))
    assert not settings.state.exists()


def larger(settings):
    """Images on which a layer has enough pixels to be shared with noise."""
    folder = settings.state.parent / "larger"
    folder.mkdir()
    for k in range(20):
        image = Image.open(settings.state.parent / "images" / f"{k:04d}.bmp").resize((12, 12))
        image.save(folder / f"{k:04d}.bmp")
    return replace(settings, data=f"folder:{folder}")


def test_noise_is_refused_where_nothing_would_be_sent(settings):
    noisy = replace(settings, adapter="recall", parameters={}, epsilon=4.0, socket=settings.state.parent / "s")
    with pytest.raises(UserError, match="128 pixels per image or more, and there is none on images of 8 x 8"):
        run_device(noisy)
    assert not noisy.state.exists()


def test_statistics_are_sent_with_noise_and_the_cost_is_written_down(settings, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    noisy = replace(settings, parameters={}, epsilon=4.0, socket=settings.state.parent / "s", budget=9.0)
    equipment = equip(noisy.model, noisy.weights, "bn", 4)
    noisy.state.mkdir()
    adapter = add_noise(equipment, noisy)
    private = _private_uploads(noisy, adapter)
    assert adapter is equipment.adapter
    adaptation, x = _adaptation(noisy, equipment), torch.rand(4, 3, 8, 8)
    handover = Handover(Snapshot(adaptation.client, x, 1))
    handler = _handler(noisy, equipment, handover, StreamPosition(), adaptation, private)
    ask = Parcel("step", 1, {"aggregator": "fedavg"})
    first, again = handler.answer(ask), handler.answer(ask)
    assert first.kind == "upload"
    assert not [key for key in first.note if key.startswith("health.")]
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])  # a batch is released once
    exact = RequestHandler("d", equipment.network, adapter, handover, spare=lambda: equipment.network).answer(ask)
    assert all((array != exact.arrays[name]).any() for name, array in first.arrays.items())
    assert "does not cover the indicator" in handler.answer(Parcel("step", 1, {"aggregator": "fedtsa"})).note["reason"]
    assert json.loads((noisy.state / "privacy.json").read_text())["releases"] == 1
    kinds = []
    for _ in range(5):
        handover.publish(Snapshot(adaptation.client, torch.rand(4, 3, 8, 8), 2))
        kinds.append(handler.answer(ask).kind)
    assert kinds == ["upload"] * 2 + ["nothing"] * 3
    assert "--budget 9 is spent after 3 uploads" in handler.answer(ask).note["reason"]
    run_device(noisy)
    assert "3 uploads with noise; epsilon 4 for an image, 7.63" in caplog.text


def test_with_a_budget_a_device_shares_noisily_and_tells_nothing_of_its_health(settings):
    noisy = replace(
        larger(settings), adapter="recall", parameters={}, epsilon=4.0, socket=settings.state.parent / "s", name="d"
    )
    equipment = equip(noisy.model, noisy.weights, "recall", 4)
    adapter = add_noise(equipment, noisy)
    assert _private_uploads(noisy, adapter) is None
    assert adapter.sends_noise == pytest.approx(noise_for(4.0, 1e-5))
    adaptation = _adaptation(noisy, replace(equipment, adapter=adapter))
    moment = Handover(Snapshot(adaptation.client, None, 0))
    handler = _handler(noisy, equipment, moment, StreamPosition(), adaptation, None)
    plain = replace(noisy, epsilon=None)
    open_handler = _handler(plain, equipment, handler.handover, StreamPosition(), adaptation, None)
    asked = Parcel("step", 1, {})
    assert not [key for key in handler.answer(asked).note if key.startswith("health.")]
    assert [key for key in open_handler.answer(asked).note if key.startswith("health.")]
    run_device(noisy)
    assert lines(noisy.state / "predictions.jsonl") == 20


def test_without_an_adapter_it_recalls_and_parameters_are_those_of_recall(settings, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    plain = replace(settings, adapter=None, parameters={"domains": 5}, data=settings.data.replace("images", "few"))
    few = settings.state.parent / "few"
    few.mkdir()
    for k in range(4):
        (settings.state.parent / "images" / f"{k:04d}.bmp").rename(few / f"{k}.bmp")
    run_device(plain)
    assert "Recall(domains=5" in caplog.text


def test_names_given_after_the_last_save_are_not_given_again(tiny_network):
    client = Recall().init(tiny_network)
    renamed = _rename(client, 40)
    assert renamed.private["key"] != client.private["key"]
    assert renamed.private["key"] != _rename(client, 50).private["key"]
    plain = BatchStatistics().init(tiny_network)
    assert _rename(plain, 40) is plain


def command(settings, log, most=resource.RLIM_INFINITY):
    """Run the settings as the command, whose files may have `most` bytes each; return its exit code."""
    words = ["--model", settings.model, "--data", settings.data, "--state", str(settings.state), "--batch", "4"]
    words += ["--weights", "random", "--adapter", "bn", "bn.momentum=0.1"]

    def child():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        sys.argv = ["fedctta", "device", *words]
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        console.err.file = sys.stderr
        logging.getLogger().handlers.clear()
        main()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    return process.exitcode


def test_a_full_disk_has_a_code_of_its_own_and_the_device_goes_on_when_there_is_room(settings, tmp_path):
    path, log = settings.state / "predictions.jsonl", tmp_path / "log"
    assert command(settings, log, most=10_000) == 75
    assert log.read_text().splitlines()[-1].startswith(f"fedctta: cannot write {path}: File too large; make room")
    assert path.read_bytes().endswith(b"\n")
    assert 0 < lines(path) < IMAGES
    assert command(settings, log) == 0
    ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == IMAGES


def test_predicting_goes_on_if_only_the_log_is_full(settings):
    command(settings, Path("/dev/full"))
    assert lines(settings.state / "predictions.jsonl") == IMAGES


@pytest.mark.parametrize("kind", ["folder", "watch"])
def test_an_image_of_another_size_does_not_settle_it_after_a_restart(settings, tmp_path, kind):
    """It was left out before, and is thus the first one that is not predicted."""
    folder = tmp_path / "few"
    folder.mkdir()

    def add(name, side):
        Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(folder / name)

    for k, side in enumerate((8, 8, 12, 8)):
        add(f"{k}.bmp", side)
    settings, rows = replace(settings, data=f"folder:{folder}"), settings.state / "predictions.jsonl"
    settings = settings if kind == "folder" else watching(settings)
    for count in (3, 5):
        process = begin(settings)
        until(lambda count=count: lines(rows) >= count)
        os.kill(process.pid, signal.SIGTERM)
        process.join(60)
        for name in ("4.bmp", "5.bmp"):
            add(name, 8)
    ids = [Path(json.loads(line)["id"]).name for line in rows.read_text().splitlines()]
    assert sorted(ids) == ["0.bmp", "1.bmp", "3.bmp", "4.bmp", "5.bmp"]


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_two_devices_do_not_write_to_one_place(settings, tmp_path, name):
    alone = replace(settings, out=tmp_path / name)
    first = watching(alone)
    second = replace(settings, state=tmp_path / "second", out=first.out)
    rows = first.out / f"_rows-{0:012d}.jsonl" if name == "p.parquet" else first.out
    process = begin(first)
    until(lambda: lines(rows) >= 4)
    with pytest.raises(UserError, match=f"another device writes to {first.out}: stop it, or choose another --out"):
        run_device(second)
    until(lambda: lines(rows) >= IMAGES)
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert not second.state.exists()
    with pytest.raises(UserError, match=f"{first.out} has rows of another --state: choose another --out"):
        run_device(second)
    assert not second.state.exists()
    assert not {"_lock", ".p.jsonl.lock"} & {path.name for path in tmp_path.rglob("*")}
    assert run_device(alone).images == IMAGES  # with its own state it goes on


FAILING = """
import numpy as np

def images():
    for _ in range(5):
        yield np.zeros((4, 8, 8, 3), np.uint8)
    yield "no image"
"""


def test_a_device_that_fails_on_its_first_day_goes_on_in_the_same_place(settings, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    settings = replace(settings, data="python:failing:images", out=tmp_path / "p.jsonl")
    for rows in (20, 40):
        with pytest.raises(UserError, match="the Python source gave"):
            run_device(settings)
        assert lines(settings.out) == rows


def test_what_was_sent_is_read_while_nobody_else_can_send(settings, monkeypatch):
    """Another device on the same state may end, and have sent something more, until this one holds its lock."""
    noisy, read = replace(settings, parameters={}, epsilon=4.0, socket=settings.state.parent / "s"), start.Accountant

    def accountant(path, *words):
        with pytest.raises(UserError, match="another device runs"):
            start.DeviceState(path.parent, "me")
        return read(path, *words)

    monkeypatch.setattr(start, "Accountant", accountant)
    assert run_device(noisy).images == IMAGES


def test_a_method_that_studies_the_source_gets_images_of_its_stream(settings):
    words = {"model": "resnet8-w16", "adapter": "eata", "parameters": {}, "batch": 10}
    assert run_device(replace(settings, data="stream:dataset=shapes-c,slots=1,client=0", **words)).images > 0


def test_a_method_that_studies_the_source_is_refused_where_the_stream_has_no_images_of_it(settings, pets):
    data = f"stream:dataset=folders,folder={pets}/pictures,size=8,clients=2,niid.clusters=1,slots=1,client=0"
    with pytest.raises(UserError, match="no images that all know, which adapter eata asks for: use"):
        run_device(replace(settings, data=data, adapter="eata", parameters={}))
    assert not settings.state.exists()


def test_images_of_the_source_are_refused_for_a_method_that_needs_none(settings, tmp_path):
    with pytest.raises(UserError, match="--source-images has no effect on adapter 'bn', which needs none: drop it"):
        run_device(replace(settings, source_images=tmp_path / "nowhere"))
    assert not settings.state.exists()


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_a_device_without_images_leaves_nothing_behind(settings, tmp_path, name):
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="there are no images in"):
        run_device(replace(settings, data=f"folder:{tmp_path}/empty", out=tmp_path / name))
    assert sorted(tmp_path.rglob("*")) == before
