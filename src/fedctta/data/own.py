"""The data sets that are files of yours with one class per image, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedctta.data.arrays import load_arrays
from fedctta.data.check_domains import check_domains
from fedctta.data.dense import EVERY, SEVERITY, check_masked, chosen
from fedctta.data.domains import Domains
from fedctta.data.folders import load_folders
from fedctta.data.masked import AnyDomains, MaskedDomains
from fedctta.errors import UserError, unknown
from fedctta.registry import read_names

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
    if severity != SEVERITY:
        raise UserError(f"severity={severity} has no effect on {name}: drop the key")
    if layout != "auto":
        raise UserError(f"layout={layout} has no effect on {name}: drop the key")
    if folder is None:
        raise UserError(f"dataset={name} needs your files: add folder=PATH")
    if name == "arrays" and size is not None:
        raise UserError(f"size={size} has no effect on arrays, which are used as they are: drop the key")
    data = load_arrays(folder) if name == "arrays" else load_folders(folder, size)
    return data if domains in EVERY else choose(data, read_names(domains, "domains"))


def take_given(data: AnyDomains, domains: str, **others: Any) -> AnyDomains:
    """Check data given as an object and return the domains asked for; refuse keys that only files have."""
    usual = {"severity": SEVERITY, "folder": None, "layout": "auto", "size": None}
    for key, value in others.items():
        if value != usual[key]:
            raise UserError(f"{key}={value} has no effect on data given as an object: drop the key")
    names = None if domains in EVERY else read_names(domains, "domains")
    if isinstance(data, MaskedDomains):
        return check_masked(data) if names is None else chosen(check_masked(data), names)
    return check_domains(data) if names is None else choose(check_domains(data), names)


def choose(data: Domains, names: tuple[str, ...]) -> Domains:
    """Return the named domains only, in this order; classes stay those of all."""
    for name in names:
        if name not in data.names:
            raise unknown("domain", name, data.names)
    labels = {n: data.labels.get(n) for n in names} if isinstance(data.labels, Mapping) else data.labels
    return replace(data, names=names, images={name: data.images[name] for name in names}, labels=labels)
