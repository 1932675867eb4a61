"""One pool of finished runs that serves every page.

A pool is a folder: `runs/` has a file per run, as `fedctta reproduce` writes them, and `records.parquet`, if it is
there, the digests of runs whose files may be gone. A run is found by the fingerprint of its experiment, so that
neither images nor weights need to be on this machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedctta.data.cache import cache_dir
from fedctta.data.corruptions.textures import STAND_IN
from fedctta.errors import UserError
from fedctta.report.weights import depict
from fedctta.results.digests import Digest, digest
from fedctta.results.packed import NAME, merge, read_packed, write_packed
from fedctta.results.records import Record, read_header


@dataclass(frozen=True)
class Kept:
    """What a pool knows of a run without reading it: its settings, how long it took, when it was made, its file."""

    settings: Mapping[str, Any]
    seconds: float
    made: str
    place: Path | None = None  # None: in records.parquet

    @property
    def rank(self) -> tuple[bool, str]:
        """What decides between two runs of one experiment."""
        return _rank(self.settings, self.made)


class Packing(NamedTuple):
    """How many rows a file of records has now, how many of them are new, and how many runs were left out, and why."""

    rows: int
    added: int
    replaced: int
    nameless: int  # files that told no experiment
    stand_ins: int  # see `find_stand_ins`


def require_pool(folder: Path) -> None:
    """Refuse a file, and a folder without finished runs."""
    require_folder(folder)
    if not (folder / "runs").is_dir() and not (folder / NAME).is_file():
        raise UserError(f"{folder} is no pool: it has neither runs/ nor {NAME}; give the --pool runs were played into")


def require_folder(folder: Path) -> None:
    """Refuse a file in a pool's place."""
    if folder.is_file():
        raise UserError(f"{folder} is a file, and a pool is a folder: give --pool {folder.parent}, the folder it is in")


def read_pool(folder: Path) -> dict[str, Kept]:
    """Return the finished runs of a pool by fingerprint; of two runs of one experiment the later one."""
    found = {key: Kept(run.settings, run.seconds, run.origin["made"]) for key, run in _packed(folder).items()}
    for key, run in _files(folder)[0].items():
        if key not in found or run.rank > found[key].rank:
            found[key] = run
    return found


def pack(folder: Path, place: Path, drawn: Collection[str] = ()) -> Packing:
    """Add the runs of a pool to a file of records; the later of two runs of one experiment stays.

    Runs that saw stand-in pictures of frost are left out where others saw the true ones. Of runs whose fingerprint is
    in `drawn`, the weights that figures show are kept, too.
    """
    old, packed = read_packed(place), _packed(folder)
    known = merge(old, packed)
    files, nameless = _files(folder)
    new = {
        key: _digest(run.place, key in drawn)
        for key, run in files.items()
        if run.place is not None
        and (key not in known or run.rank > _rank(known[key].settings, known[key].origin["made"]))
    }
    left_out = find_stand_ins(old, packed, new)
    rows: dict[str, Digest] = {}
    for part in (old, packed, new):
        rows = merge(rows, {key: run for key, run in part.items() if (key, run.origin["made"]) not in left_out})
    added = len(rows.keys() - old.keys())
    replaced = sum(rows[key].origin["made"] != old[key].origin["made"] for key in old.keys() & rows.keys())
    if added or replaced or old.keys() - rows.keys() or not place.is_file():
        write_packed(place, rows)
    return Packing(len(rows), added, replaced, nameless, len(left_out))


def find_stand_ins(*parts: Mapping[str, Digest]) -> set[tuple[str, Any]]:
    """Return runs, and when they were made, that saw frost of stand-in pictures where others saw the true ones.

    Side by side in a table they would be compared on different images.
    """
    every = [(key, run) for part in parts for key, run in part.items()]
    true = {run.settings["dataset"] for _, run in every if "frost" in run.split("domain") and not _drew(run.settings)}
    return {(key, run.origin["made"]) for key, run in every if run.settings["dataset"] in true and _drew(run.settings)}


def _rank(settings: Mapping[str, Any], made: str) -> tuple[bool, str]:
    """Of two runs of one experiment the later one stays, but none on stand-in pictures for one on the true ones."""
    return not _drew(settings), made


def _drew(settings: Mapping[str, Any]) -> bool:
    """Whether a run saw stand-in pictures."""
    return any(STAND_IN in note for note in settings.get("notes", ()))


def _packed(folder: Path) -> dict[str, Digest]:
    return read_packed(folder / NAME)


def _files(folder: Path) -> tuple[dict[str, Kept], int]:
    """Return the files of runs by fingerprint, the latest of each, and how many do not say what they are of."""
    found: dict[str, Kept] = {}
    nameless = 0
    for path in sorted((folder / "runs").glob("*.safetensors")):
        header = read_header(path)
        origin = header["origin"]
        if not origin:
            nameless += 1
            continue
        run = Kept(header["settings"], float(header["seconds"]), str(origin["made"]), path)
        key = str(origin["fingerprint"])
        if key not in found or run.rank > found[key].rank:
            found[key] = run
    return found, nameless


def _digest(path: Path, drawn: bool) -> Digest:
    run = Record.load(path)
    notes = [str(note).replace(str(cache_dir()), "CACHE") for note in run.settings.get("notes", ())]
    run = replace(run, settings={**run.settings, "notes": notes})
    return digest(run, depict(run) if drawn else None)
