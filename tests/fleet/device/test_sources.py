from __future__ import annotations

import io
import sys
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from fedctta.data.decode_file import decode_file
from fedctta.errors import UserError
from fedctta.fleet.device import watch as watch_module
from fedctta.fleet.device.sources import Batch, Done, open_source, paced


def draw(path, value=0, side=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(path)
    return str(path)


def ids(source):
    return [batch.ids for batch in source]


def test_a_folder_is_read_in_the_order_of_names_and_not_twice(tmp_path):
    names = [draw(tmp_path / name, k) for k, name in enumerate(["a.png", "b/c.png", "d.bmp", "e.png", "f.PPM"])]
    (tmp_path / "notes.txt").write_text("no image")
    draw(tmp_path / ".hidden.png")
    batches = list(open_source(f"folder:{tmp_path}", 2, Done()))
    assert [b.ids for b in batches] == [tuple(names[:2]), tuple(names[2:4]), tuple(names[4:])]
    assert [b.images[:, 0, 0, 0].tolist() for b in batches] == [[0, 1], [2, 3], [4]]
    assert batches[0].images.shape == (2, 4, 4, 3)
    assert batches[0].labels is None
    assert ids(open_source(f"folder:{tmp_path}", 9, Done({names[0], names[3]}))) == [(names[1], names[2], names[4])]


def test_a_folder_without_images_is_told_and_one_that_is_done_is_not(tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(
        UserError, match=f"there are no images in {tmp_path}: check the path in --data, or write watch:"
    ):
        open_source(f"folder:{tmp_path}", 9, Done())
    name = draw(tmp_path / "a.png")
    assert ids(open_source(f"folder:{tmp_path}", 9, Done({name}))) == []


def test_unreadable_and_odd_sized_images_are_left_out_and_told(tmp_path, caplog):
    first, last = draw(tmp_path / "a.png"), draw(tmp_path / "z.png")
    draw(tmp_path / "m.png", side=5)
    (tmp_path / "n.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    assert ids(open_source(f"folder:{tmp_path}", 9, Done())) == [(first, last)]
    assert "m.png: it has 5x5 pixels, the first image had 4x4" in caplog.text
    assert "n.png" in caplog.text


def test_a_device_sees_files_as_a_simulation_does(tmp_path, monkeypatch, caplog):
    turned = Image.Exif()
    turned[0x0112] = 6  # by a quarter
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=turned)
    Image.fromarray(np.full((8, 4), 300, np.uint16)).save(tmp_path / "b.png")
    expected = decode_file(tmp_path / "a.jpg", None)
    assert expected.shape == (8, 4, 3)
    clock = iter(range(100, 200))
    monkeypatch.setattr(watch_module, "GIVE_UP_AFTER", -1.0)
    watched = list(islice(watch_module.watch(tmp_path, 9, 0.0, set(), lambda: next(clock)), 5))
    for batches in (list(open_source(f"folder:{tmp_path}", 9, Done())), [b for b in watched if b is not None]):
        assert [b.ids for b in batches] == [(str(tmp_path / "a.jpg"),)]
        np.testing.assert_array_equal(batches[0].images[0], expected)
    assert caplog.text.count(f"left out {tmp_path}/b.png: has more than 8 bits per value") == 2


def test_paths_on_standard_input(tmp_path, monkeypatch, caplog):
    a, b, c = (draw(tmp_path / f"{name}.png") for name in "abc")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{a}\n\n{tmp_path}/missing.png\n{b}\n{c}\n"))
    assert ids(open_source("stdin", 2, Done({b}))) == [(a, c)]
    assert "missing.png" in caplog.text


def put_module(tmp_path, monkeypatch, text):
    (tmp_path / "eyes.py").write_text("import numpy as np\n" + text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "eyes", raising=False)


def test_python_sequences_are_numbered_and_resumed(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, "batches = [np.full((3, 4, 4, 3), k, np.uint8) for k in range(3)]")
    assert ids(open_source("python:eyes:batches", 10, Done())) == [("0", "1", "2"), ("3", "4", "5"), ("6", "7", "8")]
    rest = list(open_source("python:eyes:batches", 10, Done(images=4)))
    assert [b.ids for b in rest] == [("4", "5"), ("6", "7", "8")]
    assert [b.images[0, 0, 0, 0] for b in rest] == [1, 2]


def test_python_functions_are_called_and_single_images_grouped(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, "def look():\n    return (np.zeros((4, 4, 3), np.uint8) for _ in range(5))")
    assert ids(open_source("python:eyes:look", 2, Done())) == [("0", "1"), ("2", "3"), ("4",)]
    assert ids(open_source("python:eyes:look", 4, Done(images=7)))[0] == ("7", "8", "9", "10")  # it goes on, live


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("foldr:x", "did you mean folder"),
        ("folder:/nowhere/at/all", "there is no folder"),
        ("watch:/nowhere/at/all", "there is no folder"),
        ("folder", "not complete"),
        ("stdin:x", "not complete"),
        ("python:nowhere:x", "cannot import"),
        ("python:json:nothing", "cannot import"),
        ("python:sys:maxsize", "must be an iterable"),
        ("stream:dataset=shapez-c", "did you mean shapes-c"),
        ("stream:dataset=shapes-c,client=one", "is not a number"),
        ("stream:datasett=shapes-c", "did you mean dataset"),
        ("stream:dataset=shapes-c,adapter=tent", "adapter has no effect in --data stream:"),
        ("stream:dataset=shapes-c,bn.momentum=0.5", "bn.momentum has no effect in --data stream:"),
        ("stream:dataset=shapes-c,roam.longest=2", "roam.longest has no effect"),
    ],
)
def test_what_cannot_be_a_source_is_told(place, said):
    with pytest.raises(UserError, match=said):
        open_source(place, 10, Done())


def test_python_arrays_of_another_form_are_told(tmp_path, monkeypatch):
    put_module(tmp_path, monkeypatch, "batches = [np.zeros((2, 4, 4, 3))]")
    with pytest.raises(UserError, match="float64"):
        list(open_source("python:eyes:batches", 2, Done()))


def test_a_pace_holds_batches_back_and_says_so_meanwhile():
    now = [0.0]

    def clock():
        now[0] += 0.25  # every look takes a quarter of a second
        return now[0]

    given = [Batch(np.zeros((1, 4, 4, 3), np.uint8), (str(k),)) for k in range(3)]
    came = [(None if batch is None else batch.ids[0], now[0]) for batch in paced(iter(given), 2.0, clock)]
    times = [when for name, when in came if name is not None]
    assert [name for name, _ in came if name is not None] == ["0", "1", "2"]
    assert times == pytest.approx([0.5, 2.5, 4.5], abs=0.3)
    assert sum(name is None for name, _ in came) > 6


def test_without_a_pace_nothing_waits():
    given = [Batch(np.zeros((1, 4, 4, 3), np.uint8), (str(k),)) for k in range(100)]
    assert list(paced(iter(given), 0.0)) == given
