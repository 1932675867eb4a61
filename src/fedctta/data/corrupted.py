"""A clean test set seen through corruptions: one domain a corruption, official files or generated here.

Generated arrays are kept in the cache under a name that holds all they depend on, so they are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedctta.data import cifar, shapes
from fedctta.data.cache import Images, cache_dir, has_array, open_array, remove_array, save_array
from fedctta.data.check_domains import check_labels
from fedctta.data.corruptions import BENCHMARK, NAMES, VERSION, corrupt
from fedctta.data.corruptions.textures import PACKAGE, STAND_IN, Textures, frost_textures, stand_in
from fedctta.data.domains import CLEAN, Domains, numbered
from fedctta.data.editions import EDITIONS
from fedctta.data.progress import bar
from fedctta.data.public import load_split
from fedctta.data.public_sets import FETCHED
from fedctta.errors import UserError, unknown
from fedctta.registry import refuse_twice

SETS = {
    "cifar10-c": "CIFAR-10-C",
    "cifar100-c": "CIFAR-100-C",
    "tiny-imagenet-c": "Tiny-ImageNet-C",
    "shapes-c": "shapes-c",
}
"""The corrupted sets, and the folder name of their official files."""

SEVERITIES = (1, 2, 3, 4, 5)


def load_domains(
    name: str,
    severity: int = 5,
    *,
    names: Sequence[str] = BENCHMARK,
    folder: Path | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Domains:
    """Return the corrupted versions of a test set at one severity, making those that are not in the cache.

    Args:
        name: "cifar10-c", "cifar100-c", "tiny-imagenet-c" or "shapes-c".
        severity: 1 to 5.
        names: the corruptions, each one a domain; "clean" is the test set as it is.
        folder: official `.npy` files, used as they are; or a source of the clean test set. It must hold one of them.
        seed: of the generated corruptions.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.
    """
    if name not in SETS:
        raise unknown("corrupted data set", name, SETS)
    if severity not in SEVERITIES:
        raise UserError(f"there is no severity {severity}; use 1 to 5")
    refuse_twice(names, "names")
    for each in names:
        if each not in (*NAMES, CLEAN):
            raise unknown("corruption", each, (*NAMES, CLEAN))
    official = official_folder(name, folder) if folder is not None else None
    if official is not None:
        return _read_official(name, official, severity, tuple(names))
    if folder is not None and name == "shapes-c":
        raise UserError(f"{folder} holds no official files of shapes-c, which is drawn here: drop folder")
    return _generate(name, severity, tuple(names), folder, seed, progress)


def official_folder(name: str, folder: Path) -> Path | None:
    """Return where official files are: `folder`, its subfolder of their usual name, or nowhere.

    One of the files is enough to tell: what is missing of the others is then told, and nothing is made in their place.
    """
    files = [f"{each}.npy" for each in ("labels", *NAMES)]
    places = (folder, folder / SETS[name])
    return next((place for place in places if any((place / file).is_file() for file in files)), None)


def _read_official(name: str, folder: Path, severity: int, names: tuple[str, ...]) -> Domains:
    """Read official files: arrays [5 n, H, W, 3], all images at severity 1, then all at 2, and so on."""

    def read(file: str, axes: int) -> NDArray[np.uint8]:
        path = folder / f"{file}.npy"
        try:
            array: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise UserError(f"{folder} has no {path.name}; add it, or name a folder with all domains") from None
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} is damaged ({error}); get it anew") from error
        if array.ndim != axes or len(array) % 5 or array.shape[3:] not in ((), (3,)):
            raise UserError(f"{path} is {array.shape}, not five severities in turn; get it anew")
        return array

    labels = read("labels", 1)
    n = len(labels) // 5
    images = {each: read(each, 4) for each in names if each != CLEAN}
    for each, array in images.items():
        if array.dtype != np.uint8:
            raise UserError(f"{folder / each}.npy holds {array.dtype}, not uint8; get it anew")
        if len(array) != len(labels):
            raise UserError(f"{folder / each}.npy has {len(array)} images for {len(labels)} labels; get both anew")
    part = slice((severity - 1) * n, severity * n)
    classes = _class_names(name, int(labels.max()) + 1)
    check_labels(labels, classes, f"labels in {folder / 'labels.npy'}")
    views = {each: array[part] for each, array in images.items()}
    if CLEAN in names:
        views[CLEAN] = _read_clean(name, None, False).images
    return Domains(names, views, labels[part].astype(np.int64), classes, (f"official files of {folder}",))


def _class_names(name: str, count: int) -> tuple[str, ...]:
    """Return the class names of a set; where only its files know them, numbers."""
    if name == "shapes-c":
        return tuple(shapes.KINDS)
    edition = EDITIONS.get(name.removesuffix("-c"))
    return numbered(count) if edition is None else edition.classes


def path_of(name: str, corruption: str, severity: int, seed: int, origin: str = "") -> Path:
    """Return where one generated domain is kept: its name holds all it depends on."""
    drawn = f"-drawing{shapes.VERSION}" if name == "shapes-c" else ""
    source = f"-{origin.replace(' ', '-')}" if origin else ""
    return cache_dir() / name / f"{corruption}-{severity}-seed{seed}-v{VERSION}{drawn}{source}.npy"


def kept_severities(name: str, seed: int = 0) -> tuple[int, ...]:
    """Return the severities at which all benchmark domains of a set are in the cache."""

    def kept(corruption: str, severity: int) -> bool:
        origins = (PACKAGE, STAND_IN) if corruption == "frost" else ("",)
        return any(has_array(path_of(name, corruption, severity, seed, origin)) for origin in origins)

    return tuple(severity for severity in SEVERITIES if all(kept(each, severity) for each in BENCHMARK))


def forget_stand_in(name: str, severity: int, seed: int) -> None:
    """Remove a frost domain made from stand-in pictures, so that the true ones are looked for again."""
    if name != "shapes-c":
        remove_array(path_of(name, "frost", severity, seed, STAND_IN))


def _textures(name: str, severity: int, seed: int) -> Textures:
    """Return the frost pictures, or only their origin if the domain made from them is kept already."""
    for origin in (PACKAGE, STAND_IN):
        if has_array(path_of(name, "frost", severity, seed, origin)):
            return Textures((), origin)
    # the drawn set promises to need no network
    return stand_in() if name == "shapes-c" else frost_textures()


def _read_clean(name: str, folder: Path | None, progress: bool | None) -> Images:
    """Return the clean test set that a corrupted one is made of."""
    if name == "shapes-c":
        return shapes.load("test")
    clean = name.removesuffix("-c")
    return (load_split if clean in FETCHED else cifar.load)(clean, "test", folder, progress)


def _generate(
    name: str, severity: int, names: tuple[str, ...], folder: Path | None, seed: int, progress: bool | None
) -> Domains:
    """Corrupt the clean test set, domain by domain, keeping each as soon as it is made."""
    drawn = name == "shapes-c"
    clean = _read_clean(name, folder, progress)
    frost = _textures(name, severity, seed) if "frost" in names else None

    def domain(corruption: str) -> NDArray[np.uint8]:
        if corruption == CLEAN:
            return np.asarray(clean.images)
        pictures, origin = (frost.images, frost.origin) if frost and corruption == "frost" else (None, "")
        path = path_of(name, corruption, severity, seed, origin)
        if not has_array(path):
            made = corrupt(np.asarray(clean.images), corruption, severity, seed, textures=pictures)
            try:
                save_array(path, made)
            except UserError:
                if not drawn:
                    raise
                return made
        return open_array(path)

    images = {}
    with bar(f"{name}, severity {severity}", len(names), progress) as advance:
        for each in names:
            images[each] = domain(each)
            advance(1)
    notes = [f"{name} generated from the clean test set (seed {seed}, recipes version {VERSION})"]
    if frost is not None and frost.origin == STAND_IN:
        remedy = "" if drawn else f"; with a network, `fedctta data fetch {name}` gets the benchmark's own"
        notes.append(f"frost uses {STAND_IN} pictures{remedy}")
    return Domains(names, images, clean.labels, clean.classes, tuple(notes))
