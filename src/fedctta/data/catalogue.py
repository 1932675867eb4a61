"""Every data set by name: what exists, getting it, and checking what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedctta.data import cifar, corrupted, shapes
from fedctta.data.asked import refuse_idle
from fedctta.data.cache import SPLITS, Images, cache_dir, check_folder, has_images
from fedctta.data.dense import DENSE
from fedctta.data.layouts import Absent
from fedctta.data.own import OWN
from fedctta.data.public import files_of, get_public, has_public, load_split
from fedctta.data.public_files import check_files
from fedctta.data.public_sets import FETCHED, PUBLIC, TINY_IMAGENET
from fedctta.errors import UserError, unknown

CLEAN = {
    "cifar10": "60,000 photographs of 10 kinds of thing, 32 x 32",
    "cifar100": "60,000 photographs of 100 kinds of thing, 32 x 32",
    "tiny-imagenet": TINY_IMAGENET.about,
    "shapes": "10,000 drawings of 10 shapes, 32 x 32, made by this package",
}
CORRUPTED = {
    "cifar10-c": "the CIFAR-10 test set under 15 corruptions",
    "cifar100-c": "the CIFAR-100 test set under 15 corruptions",
    "tiny-imagenet-c": "the Tiny ImageNet test set under 15 corruptions",
    "shapes-c": "the shapes test set under 15 corruptions",
}


class Entry(NamedTuple):
    """One line of the catalogue; the state is "embedded", "yours", "missing", or begins with "cached"."""

    name: str
    about: str
    state: str


def load(name: str, split: str, folder: Path | None = None, progress: bool | None = None) -> Images:
    """Return one split ("train" or "test") of a clean data set, getting it first where needed.

    Args:
        name: "cifar10", "cifar100", "tiny-imagenet" or "shapes".
        split: "train" or "test".
        folder: where the files are, for the data sets that have any; then no network is used. A folder of official
            corrupted files may do without the clean ones if these are in the cache.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.
    """
    if name not in CLEAN:
        raise unknown("data set", name, CLEAN)
    if name == "shapes":
        if folder is not None and corrupted.official_folder("shapes-c", folder) is None:
            raise UserError("shapes are drawn here: drop folder")
        return shapes.load(split)
    if name in FETCHED:
        if folder is not None and corrupted.official_folder(f"{name}-c", folder) is not None:
            folder = None
        return load_split(name, split, folder, progress)
    try:
        return cifar.load(name, split, folder, progress)
    except Absent:
        official = folder is not None and corrupted.official_folder(f"{name}-c", folder) is not None
        if not official or not has_images(cache_dir() / name, split):
            raise
        return cifar.load(name, split, None, progress)


def datasets() -> tuple[Entry, ...]:
    """Return every data set with one line about it and its state."""
    return tuple(Entry(name, about, _state(name)) for name, about in names().items())


def names() -> dict[str, str]:
    """Return every data set with one line about it."""
    return CLEAN | CORRUPTED | {name: spec.about for name, spec in PUBLIC.items()} | DENSE | OWN


def _state(name: str) -> str:
    if name == "masked" or name in OWN:
        return "yours"
    if name in ("shapes", "scenes"):
        return "embedded"
    if name in FETCHED:
        return "cached" if has_public(name) else "missing"
    if name in CLEAN:
        kept = [split for split in SPLITS if has_images(cache_dir() / name, split)]
        return "cached" if len(kept) == len(SPLITS) else f"cached ({kept[0]} only)" if kept else "missing"
    severities = corrupted.kept_severities(name)
    if severities:
        return f"cached (severity {', '.join(map(str, severities))})"
    return "embedded" if name == "shapes-c" else "missing"


def fetch(
    name: str, folder: Path | None = None, severity: int = 5, seed: int = 0, progress: bool | None = None
) -> tuple[str, ...]:
    """Put a data set into the cache and return what there is to say about it."""
    if name not in CORRUPTED:
        refuse_idle(name, severity=severity)
    if name in CORRUPTED:
        if folder is not None and corrupted.official_folder(name, folder) is not None:
            raise UserError(
                f"{folder} holds official files, which are read where they are: use them with folder={folder}"
            )
        corrupted.forget_stand_in(name, severity, seed)
        return corrupted.load_domains(name, severity, folder=folder, seed=seed, progress=progress).notes
    if name == "scenes":
        return ("scenes are drawn when needed: there is nothing to fetch",)
    if name == "masked" or name in OWN:
        raise UserError(f"{name} is a folder of yours: there is nothing to fetch; use it with folder=PATH")
    if name in FETCHED:
        get_public(name, folder, progress)
        return FETCHED[name].card()
    if name not in CLEAN:
        raise unknown("data set", name, names())
    return tuple(f"{split}: {len(load(name, split, folder, progress)):,} images" for split in SPLITS)


def check(name: str | None = None, repair: bool = False) -> list[tuple[Path, str]]:
    """Read every kept file of one data set (or of all) in full, and return each with its state.

    The state is "ok", "damaged" or "incomplete". With `repair` the last two are removed, and the state says so;
    they are made or fetched again when next needed.
    """
    cached = (*CLEAN, *CORRUPTED, *PUBLIC, "folders")
    if name is not None and name not in cached:
        raise unknown("data set", name, cached)
    found = []
    for each in [name] if name else cached:
        found += check_files(files_of(each), repair) if each in FETCHED else []
        found += check_folder(cache_dir() / each, repair) if each not in PUBLIC else []
    return found
