"""A folder or a zip archive as names and bytes, so that both are read by the same code."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedctta.errors import UserError, reason

ARCHIVES = (".zip", ".whl")


class Tree(NamedTuple):
    """Files by their path below the root, with "/" between its parts."""

    where: str
    names: tuple[str, ...]
    read: Callable[[str], bytes]


@contextmanager
def open_tree(place: Path) -> Iterator[Tree]:
    """Open a folder, or an archive in place of one."""
    if place.suffix.lower() not in ARCHIVES:
        yield _folder(place)
        return
    if not place.is_file():
        raise UserError(f"there is no file {place}: check the path")
    try:
        archive = zipfile.ZipFile(place)
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{place} is damaged or no zip archive ({error}): get it anew") from error
    with archive:

        def read(name: str) -> bytes:
            try:
                return archive.read(name)
            except (OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise UserError(f"{place} is damaged ({error}): get it anew") from error

        names = tuple(member.filename for member in archive.infolist() if not member.is_dir())
        yield Tree(str(place), names, read)


def _folder(root: Path) -> Tree:
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: check the path")
    found = [Path(at, file).relative_to(root).as_posix() for at, _, files in os.walk(root) for file in files]

    def read(name: str) -> bytes:
        try:
            return (root / name).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {root / name}: {reason(error)}; mend it") from error

    return Tree(str(root), tuple(sorted(found)), read)
