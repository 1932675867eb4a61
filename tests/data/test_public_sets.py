"""The table of public sets, which nothing is fetched for."""

from __future__ import annotations

import re

import pytest

from fedctta.data.public_sets import PUBLIC, GitHub


@pytest.mark.parametrize("name", PUBLIC)
def test_a_set_is_told_in_full(name):
    spec = PUBLIC[name]
    assert re.fullmatch("[0-9a-f]{64}", spec.digest)
    assert spec.owner
    assert spec.licence
    what, whose, checked = spec.card()
    assert what == spec.about
    assert spec.owner in whose
    assert spec.licence in whose
    assert f"{spec.files:,} files" in checked
    if isinstance(spec.source, GitHub):
        assert re.fullmatch("[0-9a-f]{40}", spec.source.commit)
        assert spec.source.repository in checked


@pytest.mark.parametrize(
    ("name", "path", "place"),
    [
        ("pacs", "Homework3-PACS-d586a6c/PACS/art_painting/dog/pic_001.jpg", "art_painting/dog/pic_001.jpg"),
        ("pacs", "sketch/horse/n02374451_10027-1.png", "sketch/horse/n02374451_10027-1.png"),
        ("pacs", "PACS/photo/cat/1.jpg", None),
        ("pacs", "PACS/photo/dog/.DS_Store", None),
        ("pacs", "PACS/myphoto/dog/1.jpg", None),
        ("office-caltech", "x/Caltech/mug/257_0001.jpg", "caltech/mug/257_0001.jpg"),
        ("office-caltech", "amazon/bike/frame_0001.jpg", "amazon/bike/frame_0001.jpg"),
    ],
)
def test_rules_say_where_files_go(name, path, place):
    assert PUBLIC[name].places([path]) == ({place: path} if place else {})
