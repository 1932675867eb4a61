"""Layouts of images and masks: which fits a folder, which split is taken, and what masks mean."""

from __future__ import annotations

import numpy as np
import pytest

from fedctta.data.mask_layouts import FROM_LABEL_IDS, FUNDUS, IGNORE, INVALID, LAYOUTS, TRAIN_IDS, YES_OR_NO, find
from fedctta.errors import UserError


def fill(folder, *places):
    for place in places:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).touch()


def test_tables_by_hand():
    assert TRAIN_IDS[[0, 18, 19, 255]].tolist() == [0, 18, INVALID, IGNORE]
    assert FROM_LABEL_IDS[[7, 33, 0, 34]].tolist() == [0, 18, IGNORE, INVALID]
    assert YES_OR_NO[[0, 1, 255, 2]].tolist() == [0, 1, 1, INVALID]
    assert FUNDUS[[0, 63, 64, 128, 191, 192, 255]].tolist() == [2, 2, 1, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("layout", "image", "mask", "domain"),
    [
        ("cityscapes", "leftImg8bit/val/ulm/a_leftImg8bit.png", "gtFine/val/ulm/a_gtFine_labelIds.png", "ulm"),
        ("acdc", "rgb_anon/fog/val/s1/a_rgb_anon.png", "gt/fog/val/s1/a_gt_labelTrainIds.png", "fog"),
        ("fundus", "one/test/ROIs/image/a.png", "one/test/ROIs/mask/a.png", "one"),
        ("sites", "one/image/a.jpg", "one/mask/a.png", "one"),
        ("folders", "one/images/a.png", "one/masks/a.bmp", "one"),
    ],
)
def test_a_layout_is_recognised(tmp_path, layout, image, mask, domain):
    fill(tmp_path, image, mask)
    name, found, (pair,) = find(tmp_path, "auto", None)
    assert (name, found) == (layout, LAYOUTS[layout])
    assert (pair.domain, pair.image, pair.mask) == (domain, tmp_path / image, tmp_path / mask)


def test_a_split_without_masks_is_passed_over_unless_asked_for(tmp_path):
    fill(tmp_path, "one/test/ROIs/image/a.png", "one/train/ROIs/image/b.png", "one/train/ROIs/mask/b.png")
    _, _, pairs = find(tmp_path, "fundus", None)
    assert [(pair.split, pair.image.name) for pair in pairs] == [("train", "b.png")]
    with pytest.raises(UserError, match=r"a\.png has no mask"):
        find(tmp_path, "fundus", "test")


def test_trained_ids_are_preferred(tmp_path):
    place = "gtFine/val/ulm/a_gtFine_label"
    fill(tmp_path, "leftImg8bit/val/ulm/a_leftImg8bit.png", f"{place}Ids.png", f"{place}TrainIds.png")
    _, _, (pair,) = find(tmp_path, "cityscapes", "val")
    assert pair.mask.name == "a_gtFine_labelTrainIds.png"
    assert np.array_equal(pair.table, TRAIN_IDS)


def test_hidden_files_and_others_are_no_images(tmp_path):
    fill(tmp_path, "one/images/a.png", "one/masks/a.png", "one/images/.b.png", "one/images/notes.txt")
    assert len(find(tmp_path, "folders", None)[2]) == 1


def test_nothing_recognised_lists_the_layouts(tmp_path):
    with pytest.raises(UserError, match=r"cityscapes: leftImg8bit.*folders: DOMAIN"):
        find(tmp_path, "auto", None)
