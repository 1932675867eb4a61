"""Clean images of the source, for methods that study them before deployment: `source_images=PATH|N`.

PATH is a folder of image files, or a .npy file. N takes as many images of the first domain in their place: not what the
source model was trained on, and said so in a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.data.check_domains import check_domains
from fedctta.data.decode import decode_files, is_image
from fedctta.data.domains import Domains
from fedctta.data.masked import AnyDomains
from fedctta.errors import UserError


def load_source_images(asked: str, data: AnyDomains, count: int, seed: int = 0) -> NDArray[Any]:
    """Return at most `count` images of the kind and shape of the data's; fewer if there are fewer."""
    if _number(asked):
        first = data.images[data.names[0]]
        if not 0 < int(asked) <= len(first):
            raise UserError(f"source_images={asked} must lie between 1 and {len(first)}, the images of {data.names[0]}")
        drawn = np.random.default_rng((seed, 43)).permutation(len(first))[: min(int(asked), count)]
        return np.asarray(first[np.sort(drawn)])
    return _of_kind(_read(Path(asked), data, count), asked, data)


def source_files(asked: str | None) -> Iterator[Path]:
    """Yield the files that the images come from, in the order in which they are used."""
    if asked is None or _number(asked):
        return
    place = Path(asked)
    if place.is_file():
        yield place
        return
    if not place.is_dir():
        raise UserError(f"there is no source_images={asked}: give a folder of images, a .npy file, or a number")
    yield from sorted(path for path in place.rglob("*") if is_image(path) and path.is_file())


def source_note(asked: str, data: AnyDomains) -> str:
    """Say where the images come from."""
    if _number(asked):
        return f"images of {data.names[0]} stand in for those of the source (source_images={asked})"
    return f"images of the source are from {asked}"


def _number(asked: str) -> bool:
    return asked.isdecimal()


def _read(place: Path, data: AnyDomains, count: int) -> NDArray[Any]:
    files = list(source_files(str(place)))
    if place.suffix == ".npy" and place.is_file():
        try:
            array: NDArray[Any] = np.load(place, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"source_images={place} cannot be read ({error}): save it with numpy anew") from error
        return array[:count]
    shape = data.images[data.names[0]].shape[1:]
    size = shape[0] if len(shape) == 3 and shape[0] == shape[1] else None
    images = decode_files(files[:count], size, "reading source images", progress=False).images
    if not len(images):
        raise UserError(f"source_images={place} holds no image that can be read: give a folder of images")
    return images


def _of_kind(images: NDArray[Any], asked: str, data: AnyDomains) -> NDArray[Any]:
    """Refuse images of another kind or shape than the data's."""
    checked = check_domains(Domains(("source",), {"source": images})).images["source"]
    first = data.images[data.names[0]]
    if (checked.dtype, checked.shape[1:]) != (first.dtype, first.shape[1:]):
        raise UserError(
            f"source_images={asked} are {checked.dtype} {list(checked.shape[1:])} and the data {first.dtype}"
            f" {list(first.shape[1:])}: give images of the same kind"
        )
    return np.asarray(checked)
