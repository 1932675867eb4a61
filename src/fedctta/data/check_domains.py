"""Refusing data that cannot be used, each kind in one line, and converting what can."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.data.domains import Domains, numbered
from fedctta.errors import UserError, unknown
from fedctta.registry import refuse_twice

MANY = 5  # channels last beyond which an axis is taken for a side of the picture


def check_domains(data: Domains) -> Domains:
    """Return the data as streams need them, or refuse them.

    Tensors become arrays, grey pictures [n, H, W] become [n, H, W, 1], other floats float32, labels int64; classes
    without names are numbered.
    """
    names = _names(data.names)
    if not isinstance(data.images, Mapping):
        raise UserError("Domains.images is no dictionary: give an array for every domain name")
    images = {name: _images(name, data.images.get(name)) for name in names}
    for name in names[1:]:
        _refuse_another_kind(names[0], images[names[0]], name, images[name])
    labels, classes = data.labels, _classes(data.classes)
    if labels is None:
        pass
    elif isinstance(labels, Mapping):
        labels = _labels_by_domain(labels, names, images)
    else:
        labels = _labels(labels, "Domains.labels")
        for name in names:
            if len(images[name]) != len(labels):
                raise UserError(
                    f"images of domain {name!r} have shape {images[name].shape} and there are {len(labels)} labels:"
                    " give one label per image, or a dictionary of labels by domain"
                )
    known = list(_known(labels))
    if not classes:
        classes = numbered(max((int(each.max()) + 1 for each in known), default=0))
    for each in known:
        check_labels(each, classes, "Domains.labels")
    return replace(data, names=names, images=images, labels=labels, classes=classes)


def check_labels(labels: NDArray[Any], classes: Sequence[str], what: str) -> None:
    """Refuse labels that are not whole numbers [n] from 0 to the number of classes - 1."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{what} are {labels.dtype} {labels.shape}: give whole numbers [n], one an image")
    wrong = labels[(labels < 0) | (labels >= len(classes))]
    if len(wrong) and not classes:
        raise UserError(f"{what} hold {wrong[0]} alone: number the classes from 0, or give no labels if none are known")
    if len(wrong):
        raise UserError(f"{what} hold {wrong[0]}: give 0 to {len(classes) - 1}, for there are {len(classes)} classes")


def as_array(values: Any) -> NDArray[Any]:
    """Return values as an array; a tensor of any device is brought here."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def _names(given: Any) -> tuple[str, ...]:
    names = _as_tuple(given)
    if names is None or not all(isinstance(name, str) for name in names):
        raise UserError(f"Domains.names is {given!r}: give a tuple of texts, one per domain")
    if not names:
        raise UserError("Domains.names is empty: name at least one domain")
    refuse_twice(names, "Domains.names")
    return names


def _classes(given: Any) -> tuple[str, ...]:
    classes = () if given is None else _as_tuple(given)
    if classes is None:
        raise UserError(f"Domains.classes is {given!r}: give a tuple of texts, one per class")
    return tuple(map(str, classes))


def _as_tuple(given: Any) -> tuple[Any, ...] | None:
    """Return the items of what holds several, an array or a generator too; a text counts as one."""
    return None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


def _images(name: str, given: Any) -> NDArray[Any]:
    if given is None:
        raise UserError(f"domain {name!r} has no images: give Domains.images an array for every name")
    try:
        images = as_array(given)
    except (TypeError, ValueError) as error:
        shapes = sorted({np.shape(image) for image in given}) if _holds_arrays(given) else []
        if len(shapes) > 1:
            raise UserError(
                f"images of domain {name!r} have different sizes, {shapes[0]} and {shapes[1]}: give all the same shape"
            ) from error
        raise UserError(f"images of domain {name!r} are no array ({error}): give all of one size") from error
    if images.ndim and not len(images):
        raise UserError(f"domain {name!r} is empty: give it images, or leave it out of Domains.names")
    if images.dtype == np.uint8:
        return _pictures(name, images)
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(
            f"images of domain {name!r} are {images.dtype}: give uint8 pictures, or floats; a run takes no token ids,"
            " and fedctta.adapt does"
        )
    if images.ndim < 2:
        raise UserError(f"images of domain {name!r} have shape {images.shape}: give [n, ...], one entry per image")
    with np.errstate(over="ignore"):
        floats = images if images.dtype == np.float32 else images.astype(np.float32)
    if not np.isfinite(floats).all():
        raise UserError(f"images of domain {name!r} hold NaN or infinity: give finite values that float32 can hold")
    return floats


def _holds_arrays(given: Any) -> bool:
    return isinstance(given, Sequence) and all(hasattr(image, "shape") for image in given)


def _pictures(name: str, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    shape = images.shape
    if images.ndim == 4 and shape[3] >= MANY > shape[1]:
        raise UserError(f"images of domain {name!r} have shape {shape}: move the channels to the end, [n, H, W, C]")
    if images.ndim not in (3, 4):
        raise UserError(
            f"images of domain {name!r} have shape {shape}: give uint8 [n, H, W, C] or [n, H, W], or floats [n, ...]"
        )
    return images[..., None] if images.ndim == 3 else images


def _refuse_another_kind(first: str, one: NDArray[Any], name: str, other: NDArray[Any]) -> None:
    if one.dtype != other.dtype:
        raise UserError(f"images of domain {name!r} are {other.dtype}, those of {first!r} {one.dtype}: give one type")
    if one.shape[1:] != other.shape[1:]:
        raise UserError(
            f"domains have images of different sizes, {first!r} {one.shape[1:]} and {name!r} {other.shape[1:]}: give"
            " all the same shape"
        )


def _labels(given: Any, what: str) -> NDArray[np.int64]:
    try:
        labels = as_array(given)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} are no array ({error}): give whole numbers [n], one an image") from error
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{what} are {labels.dtype} {labels.shape}: give whole numbers [n], one an image")
    return labels if labels.dtype == np.int64 else labels.astype(np.int64)


def _labels_by_domain(
    given: Mapping[str, Any], names: tuple[str, ...], images: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[np.int64] | None]:
    for name in given:
        if name not in names:
            raise unknown("domain in Domains.labels", str(name), names)
    labels: dict[str, NDArray[np.int64] | None] = {}
    for name in names:
        what = f"Domains.labels of {name!r}"
        labels[name] = None if given.get(name) is None else _labels(given[name], what)
        mine = labels[name]
        if mine is not None and len(mine) != len(images[name]):
            raise UserError(f"domain {name!r} has {len(images[name])} images and {len(mine)} labels: give one each")
    return labels


def _known(labels: Any) -> Iterable[NDArray[np.int64]]:
    """Return the label arrays there are."""
    each = labels.values() if isinstance(labels, Mapping) else (labels,)
    return (mine for mine in each if mine is not None)
