"""Reading CIFAR from a folder, in whichever layout its files come; every layout must give the same bytes.

A folder may hold the official Python pickles, the official binary files, PNG strips with JSON labels, an archive of
these, or a folder of PNG files for each class. The last has no official order: it must give the same set of images.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import pickle
import re
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedctta.data.cache import Images, sha256
from fedctta.data.editions import BATCHES, Edition
from fedctta.errors import UserError

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


class Absent(UserError):
    """A folder holds no such data set, in no layout; a damaged one is another error."""


class ArraysOnly(pickle.Unpickler):
    """An unpickler that can rebuild arrays and plain containers, and can call nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the three globals an array's pickle needs, or refuse."""
        allowed = {"ndarray": np.ndarray, "dtype": np.dtype, "_reconstruct": np.empty(0).__reduce__()[0]}
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in allowed:
            return allowed[name]
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a data file")


def _planes(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn rows of red, green and blue planes [n, 3072] into images [n, 32, 32, 3]."""
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _join(parts: list[Arrays]) -> Arrays:
    """Join the batches of one split."""
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def read_pickles(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read the official Python files."""

    def batch(path: Path) -> Arrays:
        stored = io.BytesIO(path.read_bytes())
        try:
            content = ArraysOnly(stored, encoding="bytes").load()
        except Exception as error:  # a damaged pickle may raise anything
            raise ValueError(f"{path.name} is damaged ({error})") from error
        if not isinstance(content, dict):
            raise ValueError(f"{path.name} holds no batch of images")
        rows, labels = (content.get(key.encode()) for key in ("data", edition.label_key))
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (3072,):
            raise ValueError(f'{path.name} has no "data" of 3072 bytes per image')
        if not isinstance(labels, list) or len(labels) != len(rows):
            raise ValueError(f'{path.name} has no "{edition.label_key}" for its {len(rows)} images')
        return _planes(rows), np.array(labels, np.int64)

    return _join([batch(folder / name) for name in edition.files[split]])


def read_binary(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read the official binary files: for each image its label byte(s) and then 3072 bytes of planes."""
    names = [f"{name}.bin" for name in edition.files[split]]
    skip = edition.label_bytes
    rows = [np.fromfile(folder / name, np.uint8).reshape(-1, skip + 3072) for name in names]
    return _join([(_planes(batch[:, skip:]), batch[:, skip - 1].astype(np.int64)) for batch in rows])


def _picture(path: Path, name: str) -> Image.Image:
    """Read and decode a PNG file, called `name` in errors."""
    stored = io.BytesIO(path.read_bytes())
    try:
        picture = Image.open(stored, formats=("PNG",))
        picture.load()
    except Exception as error:  # Pillow has no one error for what is damaged
        raise ValueError(f"{name} is damaged or no PNG file") from error
    return picture


def read_strip(path: Path) -> NDArray[np.uint8]:
    """Read a PNG strip: an RGB picture in which each row is one square image, flattened."""
    picture = _picture(path, path.name)
    side = math.isqrt(picture.width)
    if picture.mode != "RGB" or side * side != picture.width:
        raise ValueError(f"{path.name} is not rows of square RGB images")
    return np.asarray(picture).reshape(-1, side, side, 3)


def read_strips(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read PNG strips and their labels, from `labels.json` or from a file of the split's own."""
    # "lables" is how the npm package spells it
    own = [path for word in ("labels", "lables") if (path := folder / f"{split}_{word}.json").is_file()]
    if own:
        labels = json.loads(own[0].read_text())
    else:
        known, key = json.loads((folder / "labels.json").read_text()), split + edition.json_suffix
        if key not in known:
            raise FileNotFoundError(f"labels of {key}")  # those of another data set
        labels = known[key]
    images = [read_strip(folder / f"{name}.png") for name in BATCHES[split]]
    return np.concatenate(images), np.array(labels, np.int64)


def _letters(name: str) -> str:
    """Reduce a class name to what all its spellings share."""
    return re.sub("[^a-z]", "", name.lower())


def _natural(path: Path) -> tuple[list[str | int], str]:
    """Return the key by which x2 sorts before x10: text and numbers by turns."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)], path.name


def read_class_folders(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read `folder`/`split`/CLASS/*.png: class after class, and within one by file name, numbers by their size."""
    spellings = {_letters(name): name for name in edition.classes}
    spellings |= edition.also_called
    named: dict[str, list[Path]] = {name: [] for name in edition.classes}
    for path in sorted((folder / split).iterdir()):
        if path.is_dir() and _letters(path.name) in spellings:
            named[spellings[_letters(path.name)]].append(path)
    missing = [name for name, places in named.items() if not places]
    if len(missing) == len(named):
        raise FileNotFoundError(f"classes of {edition.name}")
    if missing:
        raise ValueError(f"{split} has no folder {missing[0]}")
    files, labels = [], []
    for label, places in enumerate(named.values()):
        found = [path for place in places for path in place.iterdir() if path.suffix.lower() == ".png"]
        files += sorted(found, key=_natural)
        labels += [label] * len(found)
    if len(files) != edition.contents[split][0]:
        raise ValueError(f"{split} has {len(files):,} images, not {edition.contents[split][0]:,}")
    images = np.empty((len(files), 32, 32, 3), np.uint8)
    for i, path in enumerate(files):
        name = path.relative_to(folder).as_posix()
        picture = _picture(path, name)
        if picture.size != (32, 32):
            raise ValueError(f"{name} is {picture.width} x {picture.height}, not 32 x 32")
        images[i] = np.asarray(picture.convert("RGB"))
    return images, np.array(labels, np.int64)


def unordered(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """Return a checksum that no order changes: SHA-256 of the sorted SHA-256s of each image and its label's byte."""
    pairs = zip(images, labels.tolist(), strict=True)
    digests = sorted(hashlib.sha256(image.tobytes() + bytes([label])).digest() for image, label in pairs)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def unpack(archive: Path, folder: Path) -> Path:
    """Write the files of a tar archive flat into `folder`, whatever their paths in it; return `folder`."""
    try:
        with tarfile.open(archive) as members:
            for member in members:
                if content := members.extractfile(member):
                    with (folder / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(content, file)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot unpack {archive}: {error}; get it anew") from error
    return folder


def read_folder(folder: Path, edition: Edition, split: str, source: Path | None = None) -> Images:
    """Read one split from `folder` or a folder directly in it, in whichever layout, and check every byte.

    `source` is what errors name instead of the folder: the archive it was unpacked from. Raises `Absent` where there
    is none, and another `UserError` where there is one but not the published one.
    """
    archives = [edition.archive, "{}-{}.tgz".format(*edition.npm)] if edition.npm else [edition.archive]
    for archive in (folder / name for name in archives if (folder / name).is_file()):
        with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
            return read_folder(unpack(archive, Path(scratch)), edition, split, archive)
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        where = source or place
        for reader in (read_pickles, read_binary, read_strips, read_class_folders):
            try:
                images, labels = reader(place, edition, split)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                continue
            except (OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"cannot read {edition.name} from {where}: {reason}; get it anew") from error
            if reader is read_class_folders:
                good = unordered(images, labels) == edition.contents[split][1]
            else:
                good = (sha256(images), sha256(labels)) == edition.checksums[split]
            if not good:
                raise UserError(f"{where} does not hold the published {edition.name} {split} set; get it anew")
            return Images(images, labels, edition.classes)
    raise Absent(
        f"{source or folder} holds no {edition.name} {split} set; name a folder with {edition.archive}, its files, "
        f"the binary files, PNG strips with labels.json, or {split}/CLASS/*.png"
    )
