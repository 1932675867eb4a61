"""The data sets that are files of yours with one class per image, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedctta.data.arrays import load_arrays
from fedctta.data.asked import SEVERITY, choose, refuse_idle
from fedctta.data.check_domains import check_domains
from fedctta.data.dense import check_masked
from fedctta.data.domains import Domains
from fedctta.data.folders import load_folders
from fedctta.data.masked import AnyDomains, MaskedDomains
from fedctta.errors import UserError

OWN = {
    "folders": "images of your own as DOMAIN/CLASS/*.png, or listed in a table: folder=PATH size=64",
    "arrays": "arrays of your own as DOMAIN.npy or DOMAIN.npz: folder=PATH",
}


def load_own(
    name: str,
    domains: str = "benchmark",
    folder: Path | None = None,
    *,
    severity: int = SEVERITY,
    layout: str = "auto",
    size: int | None = None,
) -> Domains:
    """Return a data set of `OWN`: its domains joined by "+", or "benchmark" for all."""
    refuse_idle(name, severity=severity, layout=layout)
    if folder is None:
        raise UserError(f"dataset={name} needs your files: add folder=PATH")
    if name == "arrays":
        refuse_idle("arrays, which are used as they are", size=size)
    return choose(load_arrays(folder) if name == "arrays" else load_folders(folder, size), domains)


def take_given(data: AnyDomains, domains: str, **others: Any) -> AnyDomains:
    """Check data given as an object and return the domains asked for; refuse keys that only files have."""
    refuse_idle("data given as an object", **others)
    return choose(check_masked(data) if isinstance(data, MaskedDomains) else check_domains(data), domains)
