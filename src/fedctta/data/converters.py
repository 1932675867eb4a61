"""Data sets of other libraries as `Domains`: a torch `Dataset` per domain, or Hugging Face `datasets` objects.

Nothing of these libraries is imported; what is used of their objects is what they have in common: a length, and items
by number. An item is (image, label), or an image, or a dictionary with the image and, if it is known, the label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.data.check_domains import as_array, check_domains
from fedctta.data.domains import Domains
from fedctta.data.progress import bar
from fedctta.errors import UserError

IMAGE_KEYS = ("image", "img", "pixel_values", "images")
LABEL_KEYS = ("label", "labels", "target", "class")


def is_dataset(given: Any) -> bool:
    """Whether it is a data set, or a mapping of names to data sets, and not a word."""
    if isinstance(given, Mapping):
        return bool(given) and all(is_dataset(each) and isinstance(name, str) for name, each in given.items())
    return not isinstance(given, str | list | tuple) and hasattr(given, "__len__") and hasattr(given, "__getitem__")


def from_datasets(given: Any, *, domain: str | None = None, progress: bool | None = None) -> Domains:
    """Return `Domains` of a mapping from a domain's name to a data set, or of one data set.

    Args:
        given: a mapping (also a Hugging Face `DatasetDict`), or one data set.
        domain: a column of that one data set by which its items are put into domains; without it, all are of one.
        progress: False for silence, True for a progress bar always, None for one where there is a terminal.

    Pictures of Pillow become uint8 colours, tensors stay what they are; all images must have one size.
    """
    if isinstance(given, Mapping):
        if domain is not None:
            raise UserError("give from_datasets either a mapping of domains or a domain column, not both")
        members = {name: [(each, k) for k in range(len(each))] for name, each in given.items()}
    elif domain is None:
        members = {"data": [(given, k) for k in range(len(given))]}
    else:
        members = {}
        for k in range(len(given)):
            members.setdefault(str(_named(given[k], domain)), []).append((given, k))
    images: dict[str, NDArray[Any]] = {}
    labels: dict[str, Any] = {}
    for name, places in members.items():
        if not places:
            raise UserError(f"domain {name!r} is empty: give it items, or leave it out")
        with bar(f"reading {name}", len(places), progress) as advance:
            images[name], labels[name] = _collect(name, places, advance)
    known = any(each is not None for each in labels.values())
    first = next(iter(given.values())) if isinstance(given, Mapping) else given
    return check_domains(Domains(tuple(images), images, labels if known else None, _classes(first)))


def _named(item: Any, column: str) -> Any:
    if not isinstance(item, Mapping) or column not in item:
        has = ", ".join(map(str, item)) if isinstance(item, Mapping) else "no columns"
        raise UserError(f"items have {has}, and not the domain column {column!r}: name one that is there")
    return item[column]


def _collect(name: str, places: list[tuple[Any, int]], advance: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Stack the images of one domain as they come, and its labels."""
    stacked: NDArray[Any] | None = None
    labels = []
    for row, (source, k) in enumerate(places):
        image, label = _split(source[k])
        if stacked is None:
            stacked = np.empty((len(places), *image.shape), image.dtype)
        if image.shape != stacked.shape[1:]:
            raise UserError(
                f"image {row} of domain {name!r} has shape {image.shape}, others {stacked.shape[1:]}: resize all to"
                " one size in the data set"
            )
        stacked[row] = image
        labels.append(label)
        advance(1)
    assert stacked is not None
    missing = sum(label is None for label in labels)
    if 0 < missing < len(labels):
        raise UserError(f"domain {name!r} has {missing} items without a label: label all of a domain, or none")
    return stacked, None if missing else np.array([as_array(label) for label in labels])


def _split(item: Any) -> tuple[NDArray[Any], Any]:
    """Return the image of an item, and its label or None."""
    if isinstance(item, Mapping):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            has = ", ".join(map(str, item))
            raise UserError(f"items have columns {has}: name that of the image {' or '.join(IMAGE_KEYS)}")
        return _as_image(image), next((item[key] for key in LABEL_KEYS if key in item), None)
    if isinstance(item, tuple | list):
        if not item:
            raise UserError("an item of the data set is empty: give (image, label), or an image")
        return _as_image(item[0]), item[1] if len(item) > 1 else None
    return _as_image(item), None


def _as_image(image: Any) -> NDArray[Any]:
    """Return the pixels of a Pillow picture in colours, and any other array or tensor as it is."""
    if hasattr(image, "convert") and hasattr(image, "mode"):
        image = image.convert("RGB")
    try:
        return as_array(image)
    except (TypeError, ValueError) as error:
        raise UserError(f"an image is a {type(image).__name__} ({error}): give arrays, tensors or pictures") from error


def _classes(data: Any) -> tuple[str, ...]:
    """Return the class names that a data set knows: its `classes`, or those of a Hugging Face label column."""
    names = getattr(data, "classes", None)
    features = getattr(data, "features", None)
    if names is None and isinstance(features, Mapping):
        names = next((getattr(features[key], "names", None) for key in LABEL_KEYS if key in features), None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()
