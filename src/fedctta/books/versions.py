"""Which parts a server needs of a device, so that the device sends only what is new.

With its question a server tells a device names and versions: of a name it needs nothing up to this version. These are
the parts it has of the device, and for every domain that is full and has one part per device, its heading with the
version of the oldest part: what is older would find no room. The device leaves out these rows, and the server puts its
own copies back:

    sent row = 0                          if the server needs nothing of this name up to this version, else the part
    part     = the shelf's row            if the sent row is 0 and the shelf has this name in this version

Nothing is assumed about earlier messages: whichever were lost, a part that the server needs is sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.library import Rules, Shelf, find_headings
from fedctta.core.network import Tensors

LATEST = torch.iinfo(torch.int64).max


def list_versions(shelf: Shelf, device: int, rules: Rules) -> Tensors:
    """Return names[P] and versions[P] up to which nothing is needed of a device."""
    mine = shelf.device == device
    headings, full = find_headings(shelf, rules.domains), _find_full(shelf, rules)
    oldest = torch.full_like(headings, LATEST).scatter_reduce(0, shelf.domain, shelf.version, "amin")
    # A part as new as the oldest has room if its device has the lower number.
    return {
        "name": torch.cat([shelf.name[mine], headings[full]]),
        "version": torch.cat([shelf.version[mine], oldest[full] - 1]),
    }


def _find_full(shelf: Shelf, rules: Rules) -> Tensor:
    """Return which domains[K] have no room for another part, and one part per device."""
    held = torch.bincount(shelf.domain, minlength=rules.domains)
    voices = torch.unique(torch.stack([shelf.domain, shelf.device]), dim=1)[0]
    return (held >= rules.parts) & (torch.bincount(voices, minlength=rules.domains) == held)


def leave_out(signals: Tensors, needless: Tensors) -> Tensors:
    """Return the signals of one device without the rows that the server does not need."""
    same = signals["name"][:, None] == needless["name"]
    there = (same & (signals["changed"][:, None] <= needless["version"])).any(1)
    return signals | {"part": torch.where(there[:, None], 0, signals["part"])}


def put_back(signals: Tensors, shelf: Shelf, device: int) -> Tensors:
    """Undo `leave_out`, given the server's parts."""
    mine = (shelf.device == device).nonzero().squeeze(1)
    same = _find(signals, shelf.name[mine], shelf.version[mine]) & (signals["part"][:, :1] == 0)
    domain, part = same.nonzero(as_tuple=True)  # at most one of each name
    return signals | {"part": signals["part"].index_copy(0, domain, shelf.rows[mine[part]])}


def _find(signals: Tensors, names: Tensor, versions: Tensor) -> Tensor:
    """Return which of the domains[K] are which of the named parts[P], in the same version: [K, P]."""
    here = signals["name"][:, None]
    return (here != 0) & (here == names) & (signals["changed"][:, None] == versions)
