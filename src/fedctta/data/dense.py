"""The data sets with a class for every pixel, by name: the embedded scenes, and any folder of images and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedctta.data import scenes
from fedctta.data.asked import SEVERITY, choose, refuse_idle
from fedctta.data.mask_layouts import IGNORE
from fedctta.data.masked import MaskedDomains, load_masked, scenes_domains
from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError, unknown
from fedctta.registry import read_names, refuse_twice

DENSE = {
    "scenes": "2,400 drawings of overlapping objects with masks, 48 x 48, under 4 shifts, made by this package",
    "masked": "images and masks of your own, by domain: folder=PATH",
}


def is_dense(name: str) -> bool:
    """Whether every pixel of a data set has a class.

    >>> is_dense("scenes"), is_dense("vessels"), is_dense("pacs"), is_dense("cifar10-c")
    (True, True, False, False)
    """
    return name in DENSE or (name in PUBLIC and PUBLIC[name].dense)


def load_dense(
    name: str,
    domains: str = "benchmark",
    folder: Path | None = None,
    *,
    severity: int = SEVERITY,
    layout: str = "auto",
    size: int | None = None,
) -> MaskedDomains:
    """Return a data set of `DENSE`: its domains joined by "+", or "benchmark" for all ("all": clean scenes as well)."""
    if name not in DENSE:
        raise unknown("data set with masks", name, DENSE)
    refuse_idle(name, severity=severity)
    if name == "scenes":
        if folder is not None:
            raise UserError("scenes are drawn here: drop folder, or use dataset=masked for images of your own")
        named = {"benchmark": tuple(scenes.SHIFTS), "all": ("clean", *scenes.SHIFTS)}
        return scenes_domains(named.get(domains) or read_names(domains, "domains"))
    if folder is None:
        raise UserError("dataset=masked needs a folder of images and masks: add folder=PATH")
    return choose(load_masked(folder, layout, size=size), domains)


def check_masked(data: MaskedDomains) -> MaskedDomains:
    """Refuse images that are not uint8 [n, H, W, 3] of one size, each with a mask [n, H, W] of known classes."""
    refuse_twice(data.names, "MaskedDomains.names")
    for name in data.names:
        images, masks = data.images.get(name), data.labels.get(name)
        if images is None or masks is None or not len(images):
            raise UserError(f"domain {name!r} has no images or no masks: give MaskedDomains arrays for every name")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise UserError(f"images of domain {name!r} are {images.dtype} {images.shape}: give uint8 [n, H, W, 3]")
        if masks.dtype != np.uint8 or masks.shape != images.shape[:3]:
            raise UserError(f"masks of domain {name!r} are {masks.dtype} {masks.shape}: give uint8 {images.shape[:3]}")
        if ((masks >= len(data.classes)) & (masks != IGNORE)).any():
            raise UserError(f"masks of domain {name!r} hold classes beyond {len(data.classes) - 1}: name all classes")
    if len({data.images[name].shape[1:] for name in data.names}) != 1:
        raise UserError("domains have images of different sizes: give all domains the same height and width")
    return data
