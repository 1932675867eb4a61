"""What methods learnt at the source: one file per method and model, in the user's cache or in the package.

For "auto" the file's name holds a hash of the model that it was learnt for.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import read_bytes
from fedctta.data.cache import cache_dir
from fedctta.errors import UserError
from fedctta.models.zoo import PACKAGED


def learnt_path(method: str, network: Network) -> Path:
    """Return where `fedctta pretrain` keeps what a method learnt for this very model."""
    return cache_dir() / "weights" / _file_name(method, network)


def read_learnt(method: str, what: str, place: str, network: Network) -> tuple[Path, Tensors]:
    """Read what a method learnt at the source, from a path or, for "auto", the user's cache and then the package."""
    path = Path(place)
    if place == "auto":
        path, packaged = learnt_path(method, network), PACKAGED / _file_name(method, network)
        path = packaged if packaged.is_file() and not path.is_file() else path
    if not path.is_file():
        where = "" if place == "auto" else f" at {path}"
        raise UserError(
            f"no {what} of {method} for this model{where}: run `fedctta pretrain method={method} model=... "
            f"dataset=...`, or give {method}.{what} another value"
        )
    stat = path.stat()
    return path, _read(path, (stat.st_mtime_ns, stat.st_size, stat.st_ino), network.device)


@lru_cache(maxsize=4)
def _read(path: Path, _: tuple[int, ...], device: torch.device) -> Tensors:
    try:
        tensors: Tensors = load_file(path, str(device))
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or not a safetensors file: make it with `fedctta pretrain`") from error
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path} holds values that are not finite in {name}: make it again")
    return tensors


@lru_cache(maxsize=2)
def _file_name(method: str, network: Network) -> str:
    digest = hashlib.sha256()
    for name, tensor in network.state.items():
        digest.update(f"{name} {list(tensor.shape)}".encode())
        digest.update(read_bytes(tensor))
    return f"{method}-{digest.hexdigest()[:12]}.safetensors"
