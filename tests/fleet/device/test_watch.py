from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

from fedctta.fleet.device import watch as watch_module
from fedctta.fleet.device.watch import LOOK_EVERY, watch


class Clock:
    """Time that passes only when told to."""

    now = 100.0

    def __call__(self):
        return self.now


def draw(path, side=4):
    Image.fromarray(np.zeros((side, side, 3), np.uint8)).save(path)
    return str(path)


def looks(source, clock, times=2):
    """Look several times, and return the batches that came."""
    came = []
    for _ in range(times):
        clock.now += LOOK_EVERY
        came.append(next(source))
    return [batch.ids for batch in came if batch is not None]


def test_files_are_taken_when_steady_and_in_batches(tmp_path):
    clock = Clock()
    source = watch(tmp_path, 2, 1.0, set(), clock)
    assert looks(source, clock) == []
    a, b, c = (draw(tmp_path / f"{name}.png") for name in "abc")
    assert looks(source, clock, 1) == []  # seen once: perhaps it is still being written
    assert looks(source, clock, 2) == [(a, b)]
    assert looks(source, clock, 2) == []
    clock.now += 1.0
    assert looks(source, clock, 1) == [(c,)]  # patience
    assert looks(source, clock, 10) == []


def test_what_arrives_first_goes_first(tmp_path):
    clock = Clock()
    source = watch(tmp_path, 1, 0.0, set(), clock)
    late, early = draw(tmp_path / "a.png"), tmp_path / "z.png"
    os.utime(late, ns=(1, 1))  # an old picture that is copied in keeps its date, but not its time of arrival
    Path(draw(tmp_path / "y.png")).rename(early)
    before = (tmp_path / "z.png").stat().st_ctime_ns
    while Path(late).stat().st_ctime_ns <= before:
        os.utime(late, ns=(1, 1))
    assert [ids[0] for ids in looks(source, clock, 6)] == [str(early), late]


def test_a_file_that_grows_waits_and_one_that_stays_broken_is_left_out(tmp_path, monkeypatch, caplog):
    clock, path = Clock(), tmp_path / "a.png"
    whole = Path(draw(path)).read_bytes()
    path.write_bytes(whole[:40])
    source = watch(tmp_path, 1, 0.0, set(), clock)
    assert looks(source, clock, 5) == []
    path.write_bytes(whole)
    assert looks(source, clock, 3) == [(str(path),)]
    path = tmp_path / "b.png"
    path.write_bytes(whole[:40])
    monkeypatch.setattr(watch_module, "GIVE_UP_AFTER", -1.0)
    assert looks(source, clock, 5) == []
    assert caplog.text.count("left out") == 1


def test_what_was_predicted_before_does_not_come_again_unless_it_is_new(tmp_path):
    clock, a, b = Clock(), draw(tmp_path / "a.png"), draw(tmp_path / "b.png")
    source = watch(tmp_path, 1, 0.0, {a, "/gone.png"}, clock)
    assert looks(source, clock, 6) == [(b,)]
    (tmp_path / "a.png").unlink()
    looks(source, clock, 1)
    draw(tmp_path / "a.png")
    assert looks(source, clock, 6) == [(a,)]


def test_a_full_folder_is_not_read_into_memory_at_once(tmp_path, monkeypatch):
    clock, read = Clock(), []
    image = np.zeros((4, 4, 3), np.uint8)
    monkeypatch.setattr(watch_module, "decode_or_tell", lambda path, size: read.append(path) or image)
    for k in range(20):
        (tmp_path / f"{k:02d}.png").touch()
    source = watch(tmp_path, 3, 1.0, set(), clock)
    assert len(looks(source, clock, 2)) == 1
    assert len(read) == 3


def test_a_folder_that_is_away_is_waited_for_and_nothing_in_it_comes_twice(tmp_path, caplog):
    caplog.set_level("INFO", "fedctta.fleet")
    clock, folder = Clock(), tmp_path / "camera"
    folder.mkdir()
    a, b, c = (draw(folder / f"{name}.png") for name in "abc")
    source = watch(folder, 1, 0.0, {a}, clock)
    assert looks(source, clock, 2) == [(b,)]
    folder.rename(tmp_path / "gone")
    assert looks(source, clock, 5) == []
    (tmp_path / "gone").rename(folder)
    assert looks(source, clock, 5) == [(c,)]
    told = [line for line in caplog.messages if str(folder) in line]
    assert told == [
        f"cannot read {folder}: No such file or directory; the device waits until it is back",
        f"{folder} is back",
    ]


def test_an_empty_place_where_a_folder_was_mounted_does_not_let_images_come_twice(tmp_path):
    clock, folder = Clock(), tmp_path / "camera"
    folder.mkdir()
    a, b = (draw(folder / f"{name}.png") for name in "ab")
    source = watch(folder, 1, 0.0, {str(folder / "old.png")}, clock)
    assert looks(source, clock, 4) == [(a,), (b,)]
    folder.rename(tmp_path / "mounted")
    folder.mkdir()
    assert looks(source, clock, 3) == []
    folder.rmdir()
    (tmp_path / "mounted").rename(folder)
    draw(folder / "c.png")
    assert looks(source, clock, 4) == [(str(folder / "c.png"),)]
    Path(a).unlink()
    assert looks(source, clock, 2) == []
    draw(a)
    draw(folder / "old.png")
    assert sorted(looks(source, clock, 5)) == [(a,), (str(folder / "old.png"),)]


def test_images_that_were_known_when_their_folder_went_away_are_not_given_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(watch_module, "GIVE_UP_AFTER", -1.0)
    clock, folder = Clock(), tmp_path / "camera"
    folder.mkdir()
    a, b = (draw(folder / f"{name}.png") for name in "ab")
    source = watch(folder, 1, 0.0, set(), clock)
    assert looks(source, clock, 2) == [(a,)]
    folder.rename(tmp_path / "gone")
    assert looks(source, clock, 5) == []
    assert "left out" not in caplog.text
    (tmp_path / "gone").rename(folder)
    assert looks(source, clock, 5) == [(b,)]
