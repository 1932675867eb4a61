"""The files of a public set in the cache: copied from a folder or archive, listed with their digests, and checked."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedctta.data.cache import file_digest, saying_how_to_choose
from fedctta.data.progress import bar
from fedctta.data.public_sets import FETCHED, HELD, PublicSet
from fedctta.data.trees import Tree
from fedctta.data.watch import cut_recordings
from fedctta.errors import UserError
from fedctta.files import whole_folder

TABLE, COUNTS = "table.csv", "held.json"


class Row(NamedTuple):
    """One file of the table: its path below the folder, what it is, whether it is held out, and its digest."""

    path: str
    domain: str
    label: str
    held: bool
    sha256: str


def not_there(name: str, tree: Tree) -> UserError:
    """Say that a folder or archive does not hold a set."""
    spec = FETCHED[name]
    return UserError(
        f"{tree.where} holds {len(spec.places(tree.names)):,} of the {spec.files:,} files of {name}: name a folder with"
        f" all files of {spec.source.told}"
    )


def is_held(sha256: str) -> bool:
    """Whether a file is held out: one in four, whatever it is called, and two copies of one image alike.

    >>> is_held("04ff"), is_held("05ff")
    (True, False)
    """
    return int(sha256[:2], 16) % HELD == 0


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 of lines "place sha256", sorted: one number for what a set's files hold."""
    lines = sorted(f"{place} {digest}\n" for place, digest in digests.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def keep(name: str, tree: Tree, folder: Path, progress: bool | None = None) -> None:
    """Copy a set's files from a tree to `folder`, which appears when all are there and are the known ones."""
    spec = FETCHED[name]
    places = spec.places(tree.names)
    if len(places) != spec.files:
        raise not_there(name, tree)
    classes = read_labels(spec, tree)
    digests: dict[str, str] = {}
    rows: list[Row] = []
    with saying_how_to_choose(), whole_folder(folder) as part:
        with bar(f"copying {name}", len(places), progress) as advance:
            for place, source in sorted(places.items()):
                content = tree.read(source)
                target = place.replace("?", classes.get(PurePosixPath(source).name, "?"))
                digests[target] = hashlib.sha256(content).hexdigest()
                if spec.kind != "arrays":
                    rows.append(_write(part, target, content, digests[target]))
                advance(1)
        if digest_of(digests) != spec.digest:
            raise UserError(
                f"{tree.where} holds another version of {name} (SHA-256 differs): get {spec.source.told}, or use"
                f" dataset={spec.kind} folder=PATH for files of your own"
            )
        if spec.kind == "arrays":
            _write_arrays(part, spec, content)
        else:
            _list(part, spec, rows, _count_held(rows))


def _write(part: Path, place: str, content: bytes, digest: str) -> Row:
    """Write one file; a picture that is to be PNG and is not becomes such, without loss."""
    if place.endswith(".png") and not content.startswith(b"\x89PNG"):
        picture, buffer = Image.open(io.BytesIO(content)), io.BytesIO()
        picture.convert("L" if "/mask/" in place else "RGB").save(buffer, "PNG", compress_level=1)
        content = buffer.getvalue()
    path = part / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    domain, _, rest = place.partition("/")
    return Row(place, domain, rest.rpartition("/")[0], is_held(digest), hashlib.sha256(content).hexdigest())


def _write_arrays(part: Path, spec: PublicSet, content: bytes) -> None:
    """Write the windows of every domain and their labels as `dataset=arrays` reads them."""
    rows, held = [], {}
    for domain, cut in cut_recordings(content).items():
        held[domain] = cut.held
        for name, array in ((f"{domain}.npy", cut.windows), (f"{domain}.labels.npy", cut.labels)):
            np.save(part / name, array, allow_pickle=False)
            rows.append(Row(name, domain, "", False, file_digest(part / name, "sha256").hex()))
    _list(part, spec, rows, held)


def _count_held(rows: Iterable[Row]) -> Counter[str]:
    """Count the images of every domain that are held out."""
    return Counter(row.domain for row in rows if row.held and row.label != "mask")


def _list(part: Path, spec: PublicSet, rows: Iterable[Row], held: Mapping[str, int]) -> None:
    """Write the table, domain by domain and held-out files first, how many images are held out, and the classes."""
    order = {domain: k for k, domain in enumerate(spec.domains)}
    listed = sorted(rows, key=lambda row: (order[row.domain], not row.held, row.path))
    with (part / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows((*row[:3], int(row.held), row.sha256) for row in listed)
    (part / COUNTS).write_text(json.dumps({domain: held.get(domain, 0) for domain in spec.domains}))
    classes = spec.classes or sorted({row.label for row in listed})
    (part / "classes.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")


def read_labels(spec: PublicSet, tree: Tree) -> dict[str, str]:
    """Return the class of every file that a list in the source names, where there is such a list."""
    if not spec.labels:
        return {}
    listed = [name for name in tree.names if f"/{name}".endswith(f"/{spec.labels}")]
    if not listed:
        raise UserError(f"{tree.where} has no {spec.labels}, which says of which class images are: add it")
    lines = tree.read(listed[0]).decode("utf-8", "replace").splitlines()
    return {words[0]: words[1] for line in lines if len(words := line.split()) > 1}


def read_rows(folder: Path) -> list[Row]:
    """Read the table."""
    try:
        with (folder / TABLE).open(newline="", encoding="utf-8") as file:
            rows = [Row(**{**line, "held": line["held"] == "1"}) for line in csv.DictReader(file)]  # type: ignore[arg-type]
    except (OSError, TypeError, KeyError, UnicodeDecodeError):
        rows = []
    if not rows:
        raise UserError(f"{folder / TABLE} is damaged: run `fedctta data check --repair`")
    return rows


def read_held(folder: Path) -> dict[str, int]:
    """Return how many images of every domain are held out; they are the first ones."""
    try:
        return {str(domain): int(count) for domain, count in json.loads((folder / COUNTS).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{folder / COUNTS} is damaged: run `fedctta data check --repair`") from error


def held_masks(folder: Path) -> dict[str, NDArray[np.bool_]]:
    """Return, for every site of images and masks, which of its images, sorted by path, are held out."""
    images = sorted((row for row in read_rows(folder) if row.label == "image"), key=lambda row: row.path)
    return {site: np.array([row.held for row in images if row.domain == site]) for site in {r.domain for r in images}}


def check_files(folder: Path, repair: bool = False) -> list[tuple[Path, str]]:
    """Compare every file with its digest; with `repair`, a set with a wrong one is removed, to be got again."""
    found = [(path, "incomplete") for path in sorted(folder.parent.glob(f".{folder.name}.*.part"))]
    if folder.is_dir():
        wrong = _wrong_files(folder)
        found += [(path, "damaged") for path in wrong] or [(folder, "ok")]
        if repair and wrong:
            shutil.rmtree(folder)
    if repair:
        for path, state in found:
            if state == "incomplete":
                shutil.rmtree(path, ignore_errors=True)
        found = [(path, state if state == "ok" else f"{state}, removed") for path, state in found]
    return found


def _wrong_files(folder: Path) -> list[Path]:
    try:
        rows, _ = read_rows(folder), read_held(folder)
    except UserError:
        return [folder]
    paths = ((folder / row.path, row.sha256) for row in rows)
    return [path for path, digest in paths if not path.is_file() or file_digest(path, "sha256").hex() != digest]
