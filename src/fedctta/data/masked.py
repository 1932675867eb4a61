"""Images with a class for every pixel, grouped by domain (a site, a weather, a scanner), from any of some layouts.

The layouts are in `LAYOUTS`; each says where images and masks lie, which part of the path names the domain, and what
class a stored mask value means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedctta.data import scenes
from fedctta.data.domains import Domains, numbered
from fedctta.data.mask_layouts import IGNORE, INVALID, LAYOUTS, Layout, Pair, find
from fedctta.errors import UserError, unknown
from fedctta.registry import refuse_twice


@dataclass(frozen=True)
class MaskedDomains:
    """Images and masks of every domain, all of one size; domains may have different numbers of them.

    Attributes:
        names: the domains.
        images: uint8 [n_d, H, W, 3] for each domain d.
        labels: uint8 [n_d, H, W] for each domain: the class of every pixel, 255 where none counts.
        classes: the class names.
        notes: what a reader of results should be told about the data.
    """

    names: tuple[str, ...]
    images: dict[str, NDArray[np.uint8]]
    labels: dict[str, NDArray[np.uint8]]
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    dense: ClassVar[bool] = True  # one label per pixel
    pictures: ClassVar[bool] = True

    @property
    def count(self) -> int:
        """Number of images in the smallest domain."""
        return min(len(self.images[name]) for name in self.names)

    def labels_of(self, name: str) -> NDArray[np.uint8]:
        """Return the masks [n_d, H, W] of a domain."""
        return self.labels[name]


AnyDomains = Domains | MaskedDomains
Some = TypeVar("Some", bound=AnyDomains)


def evened(data: MaskedDomains, seed: int) -> MaskedDomains:
    """Take as many images of every domain as the smallest has, drawn by the seed; all where all have as many.

    So a client can stay equally long in every domain, and no domain counts more than another.
    """
    if all(len(data.images[name]) == data.count for name in data.names):
        return data
    rng = np.random.default_rng((seed, 41))
    drawn = {name: np.sort(rng.permutation(len(data.images[name]))[: data.count]) for name in data.names}
    images = {name: data.images[name][drawn[name]] for name in data.names}
    labels = {name: data.labels[name][drawn[name]] for name in data.names}
    notes = (*data.notes, f"{data.count} images of every domain, as many as the smallest has, drawn by the seed")
    return MaskedDomains(data.names, images, labels, data.classes, notes)


def scenes_domains(names: Sequence[str] = tuple(scenes.SHIFTS), *, split: str = "test", seed: int = 0) -> MaskedDomains:
    """Return the embedded scenes through each shift named ("clean" for none); masks are the same in every domain."""
    for name in names:
        if name not in ("clean", *scenes.SHIFTS):
            raise unknown("shift of the scenes", name, ("clean", *scenes.SHIFTS))
    data = scenes.load(split)
    images = {name: data.images if name == "clean" else scenes.SHIFTS[name](data.images, seed) for name in names}
    notes = (f"scenes ({split} split) drawn by this package (seed {seed}, drawings version {scenes.VERSION})",)
    return MaskedDomains(tuple(names), images, dict.fromkeys(names, data.masks), data.classes, notes)


def load_masked(
    folder: Path,
    layout: str = "auto",
    *,
    size: int | tuple[int, int] | None = None,
    split: str | None = None,
    classes: Sequence[str] | None = None,
) -> MaskedDomains:
    """Read a folder of images and masks.

    Args:
        folder: its root, as the data set's own archive unpacks.
        layout: one of `LAYOUTS`, or "auto" for the first of them that fits.
        size: (height, width), or one number for both, that all are resized to: images bilinearly, masks to the nearest
            pixel. None keeps their size, which must then be the same for all.
        split: which part, in layouts that have any; None for the first with masks of val, test and train.
        classes: the class names in the "folders" layout; None takes the lines of the folder's `classes.txt`, or,
            without such a file, counts the classes its masks hold (see `with_more_classes`).
    """
    folder = Path(folder)
    if layout not in ("auto", *LAYOUTS):
        raise unknown("layout", layout, ("auto", *LAYOUTS))
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: check the path")
    name, chosen, pairs = find(folder, layout, split)
    shape = _shape(pairs[0], size)
    if classes is None and not chosen.classes:
        classes = read_classes(folder / "classes.txt")
    domains = sorted({pair.domain for pair in pairs})
    members = {domain: [pair for pair in pairs if pair.domain == domain] for domain in domains}
    images = {domain: np.empty((len(members[domain]), *shape, 3), np.uint8) for domain in domains}
    labels = {domain: np.empty((len(members[domain]), *shape), np.uint8) for domain in domains}
    for domain in domains:
        for k, pair in enumerate(members[domain]):
            images[domain][k], mask = _read(pair, shape, exact=size is None)
            labels[domain][k] = _classes_of(mask, pair, classes)
    part = f", split {pairs[0].split}" if pairs[0].split else ""
    notes = (f"{len(pairs)} images of {folder} (layout {name}{part}), {shape[0]} x {shape[1]}",)
    return MaskedDomains(tuple(domains), images, labels, _names(labels, chosen, classes, folder), notes)


def _open(path: Path) -> Image.Image:
    """Read a picture, turned as the camera's orientation says."""
    try:
        with Image.open(path) as picture:
            return ImageOps.exif_transpose(picture)
    except Exception as error:  # Pillow has no one error for what is damaged
        raise UserError(f"{path} is damaged or no image ({error}): get it anew") from error


def _shape(pair: Pair, size: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return (height, width) of all arrays: those asked for, or those of the first image."""
    if size is None:
        first = _open(pair.image)
        return first.height, first.width
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise UserError(f"cannot resize to {height} x {width}: give a size of at least 1 x 1")
    return height, width


def _read(pair: Pair, shape: tuple[int, int], exact: bool) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image [H, W, 3] and its mask [H, W] as stored, both of `shape`; `exact` refuses to resize."""
    image, mask = _open(pair.image), _open(pair.mask)
    if image.size != mask.size:
        sizes = " and its mask ".join(f"{each.height} x {each.width}" for each in (image, mask))
        raise UserError(f"{pair.image} is {sizes} ({pair.mask}): make both the same size")
    height, width = shape
    if exact and image.size != (width, height):
        raise UserError(f"{pair.image} is {image.height} x {image.width}, others {height} x {width}: give a size")
    if image.mode[0] in "IF":
        raise UserError(f"{pair.image} has more than 8 bits a value: store it with 8")
    values = np.asarray(mask)
    if values.ndim == 3:  # grey stored as colours, with or without opacity
        if values.shape[2] in (3, 4) and (values[..., :3] != values[..., :1]).any():
            raise UserError(f"{pair.mask} is a colour picture: store class numbers in one channel")
        values = values[..., 0]
    if values.max() > IGNORE or values.min() < 0:
        raise UserError(f"{pair.mask} holds values beyond 0..255: store class numbers in 8 bits")
    image = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    small = Image.fromarray(values.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)
    return np.array(image), np.array(small)


def _classes_of(mask: NDArray[np.uint8], pair: Pair, classes: Sequence[str] | None) -> NDArray[np.uint8]:
    """Translate stored mask values into classes."""
    values = pair.table[mask]
    limit = len(classes) if classes else INVALID
    wrong = (values == INVALID) | ((values >= limit) & (values != IGNORE))
    if wrong.any():
        found = int(mask[wrong][0])
        raise UserError(f"{pair.mask} holds the value {found}, which is no class: mend it, or choose another layout")
    return values.astype(np.uint8)


def _names(
    labels: dict[str, NDArray[np.uint8]], layout: Layout, classes: Sequence[str] | None, folder: Path
) -> tuple[str, ...]:
    """Return the class names: the layout's, the caller's, or numbers up to the largest seen."""
    seen = np.unique(np.concatenate([np.unique(masks) for masks in labels.values()]))
    seen = seen[seen != IGNORE]
    if not len(seen):
        raise UserError(f"the masks of {folder} are ignored (255) everywhere: choose another split or layout")
    if classes or layout.classes:
        return tuple(classes or layout.classes)
    if seen[-1] == 0:
        raise UserError(f"the masks of {folder} hold class 0 only (255 is ignored): for masks of 0 and 255 use sites")
    return numbered(int(seen[-1]) + 1)


def with_more_classes(data: Some, names: Sequence[str]) -> Some:
    """Return the data with the classes `names`, if theirs were counted in their labels and these are more.

    What labels of one folder hold is a lower bound: a class may be rare, or foreign to a site. The model knows all.
    """
    counted = data.classes == numbered(len(data.classes))
    return replace(data, classes=tuple(names)) if counted and len(names) > len(data.classes) else data


def read_classes(path: Path) -> tuple[str, ...] | None:
    """Return the class names of a file with one name per line, if it exists."""
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} ({error}): write one class name a line") from error
    if not 2 <= len(names) <= IGNORE:
        raise UserError(f"{path} has {len(names)} class names: write one a line, 2 to {IGNORE} of them")
    refuse_twice(names, str(path))
    return names
