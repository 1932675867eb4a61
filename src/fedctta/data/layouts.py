"""Reading CIFAR from a folder, in whichever layout its files come; every layout must give the same bytes.

A folder may hold the official Python pickles, the official binary files, PNG strips with JSON labels, or an archive
of these.
"""

from __future__ import annotations

import io
import json
import math
import pickle
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


class _ArraysOnly(pickle.Unpickler):
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
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return _planes(content[b"data"]), np.array(content[edition.label_key.encode()], np.int64)

    return _join([batch(folder / name) for name in edition.files[split]])


def read_binary(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read the official binary files: for each image its label byte(s) and then 3072 bytes of planes."""
    names = [f"{name}.bin" for name in edition.files[split]]
    skip = edition.label_bytes
    rows = [np.fromfile(folder / name, np.uint8).reshape(-1, skip + 3072) for name in names]
    return _join([(_planes(batch[:, skip:]), batch[:, skip - 1].astype(np.int64)) for batch in rows])


def read_strip(path: Path) -> NDArray[np.uint8]:
    """Read a PNG strip: an RGB picture in which each row is one square image, flattened."""
    with Image.open(path) as picture:
        side = math.isqrt(picture.width)
        if picture.mode != "RGB" or side * side != picture.width:
            raise ValueError("not rows of square RGB images")
        return np.asarray(picture).reshape(-1, side, side, 3)


def read_strips(folder: Path, edition: Edition, split: str) -> Arrays:
    """Read PNG strips and their labels, from `labels.json` or from a file of the split's own."""
    # "lables" is how the npm package spells it
    own = [path for word in ("labels", "lables") if (path := folder / f"{split}_{word}.json").is_file()]
    if own:
        labels = json.loads(own[0].read_text())
    else:
        labels = json.loads((folder / "labels.json").read_text())[split + edition.json_suffix]
    images = [read_strip(folder / f"{name}.png") for name in BATCHES[split]]
    return np.concatenate(images), np.array(labels, np.int64)


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
        for reader in (read_pickles, read_binary, read_strips):
            try:
                images, labels = reader(place, edition, split)
            except (FileNotFoundError, IsADirectoryError, KeyError):
                continue
            except (OSError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
                reason = " ".join(str(error).split())
                where = source or place
                raise UserError(f"cannot read {edition.name} from {where}: {reason}; get it anew") from error
            if (sha256(images), sha256(labels)) != edition.checksums[split]:
                where = source or place
                raise UserError(f"{where} does not hold the published {edition.name} {split} set; get it anew")
            return Images(images, labels, edition.classes)
    raise Absent(
        f"{source or folder} holds no {edition.name} {split} set; name a folder with {edition.archive}, its files, "
        "the binary files or PNG strips with labels.json"
    )
