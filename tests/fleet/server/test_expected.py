"""Names of devices with keys."""

from __future__ import annotations

import pytest

from fedctta.fleet.server.expected import EXPECTED, read_expected, write_expected


def test_names_are_written_and_read(tmp_path):
    assert read_expected(tmp_path) == []
    write_expected(tmp_path / "server", ["b", "a", "b"])
    assert read_expected(tmp_path / "server") == ["a", "b"]


@pytest.mark.parametrize("content", ["", "{", "{}", "3", "[1, null]"])
def test_a_damaged_file_has_no_names(tmp_path, content):
    (tmp_path / EXPECTED).write_text(content)
    assert read_expected(tmp_path) == []
