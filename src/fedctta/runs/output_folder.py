"""The folder of a call: which runs it holds, so that other runs do not take the place of its report unasked.

A file `experiments.json` in it names its experiments by fingerprint. Without `resume`, a folder takes the same
experiments again, or is new. With it, a folder takes more experiments, if at least one is there already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.runs.settings import Experiment

FILE = "experiments.json"


@contextmanager
def claim_folder(folder: Path | None, experiments: Sequence[Experiment], resume: bool) -> Iterator[None]:
    """Refuse a folder that holds other runs; write down those that it will hold, unless nothing comes of them."""
    if folder is None:
        yield
        return
    made = [place for place in (folder / "runs", folder, *folder.parents) if not place.exists()]
    _claim(folder, experiments, resume)
    try:
        yield
    except BaseException:  # also when it is told to end
        if not any((folder / "runs").glob("*")):
            (folder / FILE).unlink(missing_ok=True)
            for place in made:
                with suppress(OSError):  # not empty
                    place.rmdir()
        raise


def _claim(folder: Path, experiments: Sequence[Experiment], resume: bool) -> None:
    there, wanted = read_names(folder), {each.fingerprint: name_of(each) for each in experiments}
    other = [name for fingerprint, name in there.items() if fingerprint not in wanted]
    if resume and there and not there.keys() & wanted.keys():
        raise UserError(
            f"{folder} holds other runs ({_some(other)}) and none of these, so there is nothing to resume: use the same"
            " words, or another --out"
        )
    if not resume and there and there.keys() != wanted.keys():
        raise UserError(
            f"{folder} holds other runs ({_some(there.values())}), whose report would be replaced: use another --out,"
            " or --resume to add to them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with whole(folder / FILE) as part:
        part.write_text(json.dumps({**there, **wanted}, indent=1) + "\n", encoding="utf-8")


def find_free_folder(wished: Path, experiments: Sequence[Experiment]) -> Path:
    """Return the first of wished, wished-2, wished-3, ... that is new, or holds these experiments and no others."""
    names, number = {each.fingerprint for each in experiments}, 1
    while True:
        folder = wished if number == 1 else wished.with_name(f"{wished.name}-{number}")
        there = read_names(folder)
        if not there or there.keys() == names:
            return folder
        number += 1


def read_names(folder: Path) -> dict[str, str]:
    """Return the experiments that a folder holds: what they are, by fingerprint."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def name_of(experiment: Experiment) -> str:
    """Say in a few words which experiment this is."""
    return (
        f"{experiment.dataset} {experiment.stream} {experiment.adapter}+{experiment.aggregator} seed {experiment.seed}"
    )


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first
