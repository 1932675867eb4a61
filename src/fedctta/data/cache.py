"""Arrays kept on disk between runs: whole, checked, and opened as memory maps.

An array is two files: `name.npy`, and `name.npy.json` with its shape, type and SHA-256. The second is written
last, so an array without it was never finished and is treated as absent.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.errors import UserError
from fedctta.files import whole

SPLITS = ("train", "test")


@dataclass(frozen=True)
class Images:
    """Labelled images: `images` uint8 [n, H, W, 3] (often a memory map), `labels` int64 [n], class names."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


def cache_dir() -> Path:
    """Return the folder for everything downloaded or generated: $FEDCTTA_HOME, or ~/.cache/fedctta.

    It is created when something is first written to it.
    """
    home = os.environ.get("FEDCTTA_HOME")
    folder = Path(home).expanduser() if home else Path.home() / ".cache" / "fedctta"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"the cache {folder} is a file; set FEDCTTA_HOME to a folder you may write to")
    return folder


def sha256(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's values in C order, little-endian, whatever file they came from."""
    values = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return hashlib.sha256(values.data.cast("B") if values.size else b"").hexdigest()


def file_digest(path: Path, algorithm: str) -> bytes:
    """Return the digest of a file's bytes by a hashlib algorithm's name."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).digest()


@contextmanager
def saying_how_to_choose() -> Iterator[None]:
    """Add to any `UserError` of the block, which says to choose another folder, how one chooses the cache."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{error}, by setting FEDCTTA_HOME") from error


def _card(path: Path) -> Path:
    """Return the name of the file that describes the array at `path`."""
    return path.with_name(path.name + ".json")


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array and then its card, each of them whole."""
    card = {"shape": array.shape, "dtype": str(array.dtype), "sha256": sha256(array)}
    with saying_how_to_choose(), whole(path) as part, part.open("wb") as file:
        np.save(file, array, allow_pickle=False)
    with saying_how_to_choose(), whole(_card(path)) as part:
        part.write_text(json.dumps(card))


def remove_array(path: Path) -> None:
    """Remove an array and its card, whatever is there of them."""
    _card(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def has_array(path: Path) -> bool:
    """Say whether `path` holds a finished array (which may since have been damaged)."""
    return path.is_file() and _card(path).is_file()


def open_array(path: Path) -> NDArray[Any]:
    """Open a saved array as a read-only memory map; its size and shape are checked, its values are not."""
    try:
        card = json.loads(_card(path).read_text())
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        expected = (tuple(card["shape"]), card["dtype"])
        size = getattr(array, "offset", 0) + array.nbytes
        if (array.shape, str(array.dtype)) == expected and path.stat().st_size == size:
            return array
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        pass
    raise UserError(f"{path} is damaged: run `fedctta data check --repair`, or delete it and run again")


def save_images(folder: Path, split: str, data: Images) -> None:
    """Save one split of a data set under `folder`."""
    save_array(folder / f"{split}-images.npy", data.images)
    save_array(folder / f"{split}-labels.npy", data.labels)


def has_images(folder: Path, split: str) -> bool:
    """Say whether one split of a data set is saved under `folder`."""
    return all(has_array(folder / f"{split}-{part}.npy") for part in ("images", "labels"))


def open_images(folder: Path, split: str, classes: tuple[str, ...]) -> Images:
    """Open one saved split: the images as a memory map, the labels in memory."""
    images = open_array(folder / f"{split}-images.npy")
    return Images(images, np.array(open_array(folder / f"{split}-labels.npy")), classes)


def state(path: Path) -> str:
    """Read a saved array in full and say what it is: "ok", "damaged" or "incomplete" (never finished)."""
    if not has_array(path):
        return "incomplete"
    try:
        good = sha256(open_array(path)) == json.loads(_card(path).read_text())["sha256"]
    except (UserError, OSError, ValueError, KeyError):
        good = False
    return "ok" if good else "damaged"


def check_folder(folder: Path, repair: bool = False) -> list[tuple[Path, str]]:
    """Check every array under `folder`; with `repair`, remove what is not ok, to be made again when needed."""
    cards = {card.with_suffix("") for card in folder.rglob("*.npy.json")}
    found = []
    for path in sorted(cards.union(folder.rglob("*.npy"))):
        verdict = state(path)
        if repair and verdict != "ok":
            remove_array(path)
            verdict += ", removed"
        found.append((path, verdict))
    return found
