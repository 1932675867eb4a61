"""`dataset=folders`: image files of your own, by domain and class, decoded once.

Arrays are kept in the cache under a hash of all they depend on: paths, sizes and times of the files, and the size asked
for. So a change of any file is noticed without reading it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.data.cache import cache_dir, has_array, open_array, save_array
from fedctta.data.decode import Decoded, OtherSize, decode_files
from fedctta.data.domains import UNLABELLED, Domains
from fedctta.data.masked import read_classes
from fedctta.data.tables import TABLES, Item, class_names, list_items
from fedctta.errors import UserError
from fedctta.files import whole

VERSION = 1  # of how files become arrays
NAMED = 3  # broken files that are named in a note
HOW = "shorter side resized to {0} (bicubic), middle {0} x {0} cut out"


def load_folders(place: Path, size: int | None = None, progress: bool | None = None) -> Domains:
    """Read a folder of DOMAIN/CLASS/files or DOMAIN/files, or a .csv or .parquet file of path, domain and label.

    Args:
        place: the folder, or the table. A file `classes.txt` in it (beside the table) names the classes in order.
        size: the side all images get; None if all have one size already.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.
    """
    items = list_items(place)
    root = place.parent if place.suffix.lower() in TABLES else place
    classes, labels = class_names(items, read_classes(root / "classes.txt"), place)
    names = tuple(dict.fromkeys(item.domain for item in items))
    images: dict[str, NDArray[np.uint8]] = {}
    kept: dict[str, NDArray[np.int64]] = {}
    broken: dict[str, str] = {}
    for name in names:
        mine = [k for k, item in enumerate(items) if item.domain == name]
        decoded = _decode([items[k] for k in mine], size, f"reading {name}", progress)
        if not len(decoded.images):
            file, why = next(iter(decoded.broken.items()))
            raise UserError(f"domain {name!r} of {place} has no image that can be read: {file} {why}")
        images[name], kept[name] = decoded.images, np.array([labels[k] for k in mine])[decoded.good]
        broken |= decoded.broken
    _refuse_mixed(images, place)
    truth = {name: _labels_or_none(kept[name], name, place) for name in names}
    labelled = any(each is not None for each in truth.values())
    notes = (_about(images, place, size), *_broken_notes(broken), *_class_notes(classes, labelled))
    return Domains(names, images, truth if labelled else None, classes, notes)


def _decode(items: Sequence[Item], size: int | None, label: str, progress: bool | None) -> Decoded:
    """Decode one domain's files, or open what was decoded before."""
    paths = [item.path for item in items]
    place = cache_dir() / "folders" / f"{_key(paths, size)}.npy"
    told = place.with_suffix(".broken.json")
    if has_array(place) and told.is_file():
        broken = json.loads(told.read_text(encoding="utf-8"))
        return Decoded(open_array(place), np.array([str(path) not in broken for path in paths]), broken)
    decoded = decode_files(paths, size, label, progress)
    if not len(decoded.images):
        return decoded
    try:
        with whole(told) as part:
            part.write_text(json.dumps(decoded.broken), encoding="utf-8")
        save_array(place, decoded.images)
    except UserError:  # a cache that cannot be written costs time only
        return decoded
    return decoded._replace(images=open_array(place))


def _key(paths: Sequence[Path], size: int | None) -> str:
    """Hash the names, sizes and times of files; a file that is not there has neither."""

    def state(path: Path) -> tuple[Any, ...]:
        try:
            found = path.stat()
        except OSError:
            return (str(path),)
        return str(path.resolve()), found.st_size, found.st_mtime_ns

    return hashlib.sha256(repr((VERSION, size, [state(path) for path in paths])).encode()).hexdigest()[:24]


def _refuse_mixed(images: dict[str, NDArray[np.uint8]], place: Path) -> None:
    sizes = {array.shape[1:3]: name for name, array in images.items()}
    if len(sizes) > 1:
        told = ", ".join(f"{name} {shape[0]} x {shape[1]}" for shape, name in sizes.items())
        raise OtherSize(f"domains of {place} differ in size ({told}): add size=64, or another side")


def _labels_or_none(labels: NDArray[np.int64], name: str, place: Path) -> NDArray[np.int64] | None:
    missing = labels == UNLABELLED
    if missing.any() and not missing.all():
        raise UserError(
            f"domain {name!r} of {place} has {missing.sum()} images without a label: label all of a domain, or none"
        )
    return None if missing.all() else labels


def _about(images: dict[str, NDArray[np.uint8]], place: Path, size: int | None) -> str:
    counts = ", ".join(f"{name} {len(array):,}" for name, array in images.items())
    return f"images of {place}: {counts}; {'size as stored' if size is None else HOW.format(size)}"


def _broken_notes(broken: dict[str, str]) -> tuple[str, ...]:
    if not broken:
        return ()
    named = "; ".join(f"{path} ({why})" for path, why in list(broken.items())[:NAMED])
    more = f"; and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    return (f"files that cannot be read and are left out: {len(broken)}: {named}{more}",)


def _class_notes(classes: Sequence[str], labelled: bool) -> tuple[str, ...]:
    if not labelled:
        return ("no labels: accuracy is not known",)
    listed = ", ".join(f"{k} {name}" for k, name in enumerate(classes[:10]))
    return (f"classes in the order the model must have: {listed}{', ...' if len(classes) > 10 else ''}",)
