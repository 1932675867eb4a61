"""The layouts that folders of images and masks come in, as facts, and finding the pairs of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError

IGNORE = 255
"""The class of pixels that count for nothing."""

INVALID = 256
"""What a table says of a value that no mask may hold."""

Table = NDArray[np.int64]
"""The class [256] of every stored mask value, `IGNORE` or `INVALID`."""

SPLITS = ("val", "test", "train")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
MASKS = (".png", ".bmp", ".tif", ".tiff")

STREETS = (
    "road,sidewalk,building,wall,fence,pole,traffic light,traffic sign,vegetation,terrain,sky,person,rider,car,truck,"
    "bus,train,motorcycle,bicycle"
)
LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The label id of each of the 19 street classes; the others up to 33 are ignored."""


def _table(meaning: dict[int, int]) -> Table:
    """Return the table that knows the values of `meaning` only."""
    table = np.full(256, INVALID, np.int64)
    table[list(meaning)] = list(meaning.values())
    return table


CLASS_NUMBERS = np.arange(256)
TRAIN_IDS = _table({k: k for k in range(19)} | {255: IGNORE})
FROM_LABEL_IDS = _table(
    dict.fromkeys((*range(34), 255), IGNORE) | {label: train for train, label in enumerate(LABEL_IDS)}
)
YES_OR_NO = _table({0: 0, 1: 1, 255: 1})
# grey levels 0, 128 and 255, whichever is nearest: the masks were resized with smooth edges
FUNDUS = np.repeat([2, 1, 0], [64, 128, 64])


@dataclass(frozen=True)
class Layout:
    """Where images and masks lie.

    Attributes:
        about: how the folder looks, for people.
        pattern: of the images below the root; "{split}" stands for train, val or test.
        domain: which part of an image's path names its domain.
        place: which part of it is replaced, by `masks`, in the path of its mask.
        masks: the name of that folder for masks.
        ending: how an image's name ends (before its suffix) where its mask's name ends otherwise.
        tables: the endings of masks, in order of preference, and what their values mean.
        classes: the class names; empty where the layout has none.
    """

    about: str
    pattern: str
    domain: int
    place: int
    masks: str
    ending: str
    tables: dict[str, Table]
    classes: tuple[str, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to look into, in order of preference; one without a name where the layout has none."""
        return SPLITS if "{split}" in self.pattern else ("",)


class Pair(NamedTuple):
    """One image and its mask."""

    domain: str
    split: str
    image: Path
    mask: Path
    table: Table


LAYOUTS = {
    "cityscapes": Layout(
        "leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with gtFine/SPLIT/CITY/*_gtFine_labelIds.png",
        "leftImg8bit/{split}/*/*_leftImg8bit.png",
        domain=2,
        place=0,
        masks="gtFine",
        ending="_leftImg8bit",
        tables={"_gtFine_labelTrainIds": TRAIN_IDS, "_gtFine_labelIds": FROM_LABEL_IDS},
        classes=tuple(STREETS.split(",")),
    ),
    "acdc": Layout(
        "rgb_anon/WEATHER/SPLIT/SEQUENCE/*_rgb_anon.png with gt/WEATHER/SPLIT/SEQUENCE/*_gt_labelTrainIds.png",
        "rgb_anon/*/{split}/*/*_rgb_anon.png",
        domain=1,
        place=0,
        masks="gt",
        ending="_rgb_anon",
        tables={"_gt_labelTrainIds": TRAIN_IDS, "_gt_labelIds": FROM_LABEL_IDS},
        classes=tuple(STREETS.split(",")),
    ),
    "fundus": Layout(
        "DOMAIN/SPLIT/ROIs/image/*.png with DOMAIN/SPLIT/ROIs/mask/*.png (0 cup, 128 disc, 255 background)",
        "*/{split}/ROIs/image/*",
        domain=0,
        place=-2,
        masks="mask",
        ending="",
        tables={"": FUNDUS},
        classes=("background", "disc", "cup"),
    ),
    "sites": Layout(
        "SITE/image/*.png with SITE/mask/*.png (0 and 1, or 0 and 255)",
        "*/image/*",
        domain=0,
        place=-2,
        masks="mask",
        ending="",
        tables={"": YES_OR_NO},
        classes=("background", "object"),
    ),
    "folders": Layout(
        "DOMAIN/images/*.png with DOMAIN/masks/*.png (class numbers, 255 ignored)",
        "*/images/*",
        domain=0,
        place=-2,
        masks="masks",
        ending="",
        tables={"": CLASS_NUMBERS},
        classes=(),
    ),
}
"""Every layout, the most particular first."""


def find(folder: Path, name: str, split: str | None) -> tuple[str, Layout, list[Pair]]:
    """Return the layout of a folder ("auto": the first that fits) with its name, and the pairs of one split.

    A layout fits where its pattern finds images. A split none of whose images has a mask (a challenge's test set) is
    passed over unless asked for; elsewhere an image without its mask is an error.
    """
    without: list[Path] = []
    tried = LAYOUTS if name == "auto" else {name: LAYOUTS[name]}
    for each, layout in tried.items():
        for part in layout.splits if split is None or layout.splits == ("",) else (split,):
            images = _images(folder, layout, part)
            found = [_pair(folder, image, layout, part) for image in images]
            pairs = [pair for pair in found if pair is not None]
            if pairs and len(pairs) == len(images):
                return each, layout, pairs
            without += [image for image, pair in zip(images, found, strict=True) if pair is None]
            if pairs:
                raise _no_mask(without[-1])
    if without:
        raise _no_mask(without[0])
    wanted = f"split {split} of a " if split else ""
    known = "; ".join(f"{each}: {layout.about}" for each, layout in tried.items())
    raise UserError(f"{folder} holds no {wanted}known layout of images and masks; arrange it as one of these: {known}")


def _no_mask(image: Path) -> UserError:
    return UserError(f"{image} has no mask: add it, remove the image, or choose another split")


def _images(folder: Path, layout: Layout, split: str) -> list[Path]:
    found = folder.glob(layout.pattern.format(split=split))
    return sorted(path for path in found if path.suffix.lower() in IMAGES and not path.name.startswith("."))


def _pair(folder: Path, image: Path, layout: Layout, split: str) -> Pair | None:
    """Return an image with its mask, or None where it has none."""
    parts = list(image.relative_to(folder).parts)
    domain = parts[layout.domain]
    parts[layout.place] = layout.masks
    place, stem = folder.joinpath(*parts[:-1]), image.stem.removesuffix(layout.ending)
    for ending, table in layout.tables.items():
        for suffix in MASKS:
            if (mask := place / f"{stem}{ending}{suffix}").is_file():
                return Pair(domain, split, image, mask, table)
    return None
