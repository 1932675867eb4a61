"""The package's TOML files, found and called by their titles."""

from __future__ import annotations

import pytest

from fedctta.errors import UserError
from fedctta.papers.tables import load_paper
from fedctta.runs.preset_files import presets, published, read_toml, titles
from fedctta.runs.settings import load_preset


def test_titles_are_those_of_what_the_files_describe():
    assert titles(presets()) == {name: load_preset(name).title for name in presets()}
    assert titles(published()) == {name: load_paper(name).title for name in published()}
    assert "demo" in presets()
    assert "fedctta-table1" in published()
    assert not set(presets()) & set(published())


def test_a_file_without_a_title_is_called_by_its_name(tmp_path):
    (tmp_path / "mine.toml").write_text("[run]\nseed = 0\n")
    assert titles({"any": tmp_path / "mine.toml"}) == {"any": "mine"}


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"there is no preset file .*nothing.toml: check the path"):
        read_toml(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("title = ")
    with pytest.raises(UserError, match=r"cannot read the preset .*bad.toml: Invalid value"):
        read_toml(tmp_path / "bad.toml")
