"""Files decoded by processes: in order, with blocks that end anywhere, and no process left behind."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from PIL import Image

from fedctta.data import decode_processes
from fedctta.data.decode_processes import decode_in_processes


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    processes = []
    start = subprocess.Popen

    def note(*args, **options):
        processes.append(start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(decode_processes.subprocess, "Popen", note)
    return processes


def test_pictures_come_in_order_with_what_is_broken(tmp_path, monkeypatch, started):
    monkeypatch.setattr(decode_processes, "BLOCK", 3)
    paths = [tmp_path / f"{k}.png" for k in range(8)]
    for k, path in enumerate(paths):
        Image.fromarray(np.full((k + 1, 2, 3), k, np.uint8)).save(path)
    paths[4].unlink()
    found = list(decode_in_processes(paths, None, 2))
    assert [each if isinstance(each, str) else each.shape for each in found] == [
        (k + 1, 2, 3) if k != 4 else "[Errno 2] No such file or directory:" for k in range(8)
    ]
    assert all((each == k).all() for k, each in enumerate(found) if k != 4)
    assert [process.poll() is not None for process in started] == [True, True]


def test_processes_end_with_who_asked(tmp_path, started):
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(tmp_path / "x.png")
    pictures = decode_in_processes([tmp_path / "x.png"] * 2000, None, 1)
    assert next(pictures).shape == (2, 2, 3)
    pictures.close()
    assert [process.poll() is not None for process in started] == [True]
