"""Both CIFAR data sets with a few random pictures each, and their files in every layout."""

from __future__ import annotations

import dataclasses
import json
import pickle
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from fedctta.data import editions
from fedctta.data.cache import SPLITS, Images, sha256
from fedctta.data.layouts import unordered

PER_BATCH = 4


@cache
def pictures(name: str, split: str) -> Images:
    """Return a tiny split with its own random pictures: as many batches as the real one."""
    n = PER_BATCH * len(editions.BATCHES[split])
    classes = editions.EDITIONS[name].classes
    random = np.random.default_rng([n, len(classes)])
    images = random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    return Images(images, random.integers(0, len(classes), n), classes)


def tiny(edition: editions.Edition) -> editions.Edition:
    """Return the edition with the tiny splits' checksums and with sources that cannot be reached."""
    splits = {split: pictures(edition.name, split) for split in SPLITS}
    return dataclasses.replace(
        edition,
        checksums={split: (sha256(data.images), sha256(data.labels)) for split, data in splits.items()},
        contents={split: (len(data), unordered(data.images, data.labels)) for split, data in splits.items()},
        url=f"http://127.0.0.1:9/{edition.archive}",
        npm=edition.npm and ("no-such-package", "0.0.0", ""),
    )


EDITIONS = {name: tiny(edition) for name, edition in editions.EDITIONS.items()}


def batches(name: str, split: str, files: tuple[str, ...]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    data = pictures(name, split)
    parts = zip(np.split(data.images, len(files)), np.split(data.labels, len(files)), strict=True)
    return [(file, images, labels) for file, (images, labels) in zip(files, parts, strict=True)]


def planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_pickles(folder: Path, name: str) -> None:
    edition = EDITIONS[name]
    for split in SPLITS:
        for file, images, labels in batches(name, split, edition.files[split]):
            content = {b"data": planes(images), edition.label_key.encode(): labels.tolist(), b"batch_label": b"x"}
            (folder / file).write_bytes(pickle.dumps(content, protocol=3))


def write_binary(folder: Path, name: str) -> None:
    edition = EDITIONS[name]
    for split in SPLITS:
        for file, images, labels in batches(name, split, edition.files[split]):
            coarse = np.full((len(labels), edition.label_bytes - 1), 7)
            rows = np.concatenate([coarse, labels[:, None], planes(images)], axis=1).astype(np.uint8)
            (folder / f"{file}.bin").write_bytes(rows.tobytes())


def write_strips(folder: Path, name: str) -> None:
    for split in SPLITS:
        for file, images, _ in batches(name, split, editions.BATCHES[split]):
            Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / f"{file}.png")
    labels = {split + EDITIONS[name].json_suffix: pictures(name, split).labels.tolist() for split in SPLITS}
    (folder / "labels.json").write_text(json.dumps(labels))


def write_npm_strips(folder: Path, name: str) -> None:
    write_strips(folder, name)
    for split, labels in json.loads((folder / "labels.json").read_text()).items():
        (folder / f"{split}_lables.json").write_text(json.dumps(labels))
    (folder / "labels.json").unlink()


def write_class_folders(folder: Path, name: str) -> None:
    """Write each picture under its place in the split, so that the names' numbers are in order within a class."""
    for split in SPLITS:
        data = pictures(name, split)
        for label in data.classes:
            (folder / split / label).mkdir(parents=True)
        for i, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
            Image.fromarray(image).save(folder / split / data.classes[label] / f"image{i}.png")


def in_class_order(name: str, split: str) -> Images:
    """Return a split as class folders have it."""
    data = pictures(name, split)
    order = np.argsort(data.labels, kind="stable")
    return Images(data.images[order], data.labels[order], data.classes)


def damage(file: Path) -> None:
    """Change the last byte of a file."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def tar(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as members:
        members.add(folder, "package")
    return archive
