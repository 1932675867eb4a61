"""Which parts a server has of a device, so that the device sends only what is new.

With its question a server tells a device the names and versions of the parts it has of it. The device leaves out the
rows of these, and the server puts its own copies back:

    sent row = 0                          if the server has this name in this version, else the part
    part     = the shelf's row            if the sent row is 0 and the shelf has this name in this version

Nothing is assumed about earlier messages: whichever were lost, a part that the server does not have is sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedctta.books.library import Shelf
from fedctta.core.network import Tensors


def list_versions(shelf: Shelf, device: int) -> Tensors:
    """Return names[P] and versions[P] of a device's parts."""
    mine = shelf.device == device
    return {"name": shelf.name[mine], "version": shelf.version[mine]}


def leave_out(signals: Tensors, known: Tensors) -> Tensors:
    """Return the signals of one device without the rows of parts that the server has."""
    there = _find(signals, known["name"], known["version"]).any(1)
    return signals | {"part": torch.where(there[:, None], 0, signals["part"])}


def put_back(signals: Tensors, shelf: Shelf, device: int) -> Tensors:
    """Undo `leave_out`, given the server's parts."""
    mine = (shelf.device == device).nonzero().squeeze(1)
    same = _find(signals, shelf.name[mine], shelf.version[mine]) & (signals["part"][:, :1] == 0)
    copies = same.to(shelf.rows.dtype) @ shelf.rows[mine]  # at most one of each name
    return signals | {"part": torch.where(same.any(1, keepdim=True), copies, signals["part"])}


def _find(signals: Tensors, names: Tensor, versions: Tensor) -> Tensor:
    """Return which of the domains[K] are which of the named parts[P], in the same version: [K, P]."""
    here = signals["name"][:, None]
    return (here != 0) & (here == names) & (signals["changed"][:, None] == versions)
