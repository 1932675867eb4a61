"""`dataset=arrays`: a folder of DOMAIN.npy or DOMAIN.npz files, used as they are.

An `.npz` file holds `images` and, if they are known, `labels`. A `.npy` file holds images; its labels are in
DOMAIN.labels.npy, if there is one, or in labels.npy for domains that hold the same images in the same order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedctta.data.check_domains import check_domains
from fedctta.data.domains import Domains
from fedctta.data.masked import read_classes
from fedctta.errors import UserError
from fedctta.registry import refuse_twice

SHARED, OWN = "labels.npy", ".labels.npy"


def load_arrays(folder: Path) -> Domains:
    """Read every domain of a folder; `classes.txt` in it names the classes in order."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: check the path")
    found = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".npz"))
    files = [path for path in found if path.name != SHARED and not path.name.endswith(OWN)]
    if not files:
        raise UserError(f"{folder} holds no DOMAIN.npy or DOMAIN.npz: check the path")
    refuse_twice([path.stem for path in files], str(folder))
    images: dict[str, NDArray[Any]] = {}
    labels: dict[str, Any] = {}
    for path in files:
        images[path.stem], labels[path.stem] = read_file(path)
    shared = folder / SHARED
    truth: Any = labels if any(each is not None for each in labels.values()) else None
    if shared.is_file():
        if truth is not None:
            raise UserError(f"{folder} has {SHARED} and labels by domain: keep one of them")
        truth = _load(shared)
    classes = read_classes(folder / "classes.txt") or ()
    counts = ", ".join(f"{name} {len(array):,}" for name, array in images.items() if array.ndim)
    notes = (f"arrays of {folder}: {counts}", *(("no labels: accuracy is not known",) if truth is None else ()))
    return check_domains(Domains(tuple(images), images, truth, classes, notes))


def read_file(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the images of a file and, where there are any, its labels."""
    if path.suffix == ".npy":
        beside = path.with_name(path.stem + OWN)
        return _load(path), _load(beside) if beside.is_file() else None
    held = _load(path)
    if "images" not in held:
        raise UserError(f"{path} holds {', '.join(held) or 'nothing'}: it needs images, and labels if they are known")
    return held["images"], held.get("labels")


def _load(path: Path) -> Any:
    """Load an array as a memory map, or all arrays of an .npz by name; pickled objects are refused."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        return found if path.suffix == ".npy" else {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())}): save it with numpy anew") from error
