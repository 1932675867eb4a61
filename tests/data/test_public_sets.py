"""The table of public sets, which nothing is fetched for."""

from __future__ import annotations

import re

import pytest

from fedctta.data.public_sets import FETCHED, PUBLIC, GitHub


@pytest.mark.parametrize("name", FETCHED)
def test_a_set_is_told_in_full(name):
    spec = FETCHED[name]
    assert re.fullmatch("[0-9a-f]{64}", spec.digest)
    assert spec.owner
    assert spec.licence
    what, whose, checked = spec.card()
    assert what == spec.about
    assert spec.owner in whose
    assert spec.licence in whose
    assert f"{spec.files:,} file" in checked
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
        ("vessels", "x/DRIVE/training/images/21_training.tif", "drive/image/21.png"),
        ("vessels", "x/DRIVE/test/1st_manual/01_manual1.gif", "drive/mask/01.png"),
        ("vessels", "x/DRIVE/test/2nd_manual/01_manual2.gif", None),
        ("vessels", "x/DRIVE/test/mask/01_test_mask.gif", None),
        ("vessels", "STARE/stare-images/im0001.ppm", "stare/image/im0001.png"),
        ("vessels", "STARE/labels-ah/im0001.ah.ppm", "stare/mask/im0001.png"),
        ("vessels", "STARE/Fold_1/Training/images/im0001.ppm", None),
        ("vessels", "CHASEDB1/images/Image_01L.jpg", "chase/image/Image_01L.png"),
        ("vessels", "CHASEDB1/labels1/Image_01L_1stHO.png", "chase/mask/Image_01L.png"),
        ("watch", "seglearn/data/watch_dataset.npy", "watch_dataset.npy"),
        ("tiny-imagenet", "t/train/n01443537/images/n01443537_0.JPEG", "train/n01443537/n01443537_0.JPEG"),
        ("tiny-imagenet", "t/train/n02480855/images/n02480855_0.JPEG", None),
        ("tiny-imagenet", "t/val/images/val_9999.JPEG", "test/?/val_9999.JPEG"),
        ("tiny-imagenet", "t/val/images/val_10000.JPEG", None),
        ("tiny-imagenet", "t/test/images/test_0.JPEG", None),
        ("office-caltech", "amazon/bike/frame_0001.jpg", "amazon/bike/frame_0001.jpg"),
    ],
)
def test_rules_say_where_files_go(name, path, place):
    assert FETCHED[name].places([path]) == ({place: path} if place else {})


def test_all_that_is_fetched_but_tiny_imagenet_has_domains():
    assert set(FETCHED) - set(PUBLIC) == {"tiny-imagenet"}
