"""An empty place to work in, and the command as a user types it."""

from __future__ import annotations

import sys

import pytest

from fedctta.cli import main


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache and an empty folder to work in."""
    monkeypatch.setenv("FEDCTTA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(monkeypatch, capsys):
    """Run the command in this process; return (exit code, standard output, standard error)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedctta", *words])
        with pytest.raises(SystemExit) as done:
            main()
        told = capsys.readouterr()
        return done.value.code or 0, told.out, told.err

    return call
