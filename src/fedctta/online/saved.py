"""The state of one device in one file: its client, what watches it, and the method and model that they belong to."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedctta.adapters import Adapter
from fedctta.core.network import Network, Tensors
from fedctta.core.tensors import read_bytes
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.registry import parameters_of


def identity(network: Network, adapter: Adapter) -> str:
    """A short hash of model, weights, method and its parameters: a state serves no other."""
    digest = hashlib.sha256(_method(adapter).encode())
    for name, tensor in network.state.items():
        digest.update(name.encode())
        digest.update(read_bytes(tensor))
    return digest.hexdigest()[:16]


def file_path(given: str | os.PathLike[str]) -> Path:
    """Return where a state lies, or refuse what names no file.

    >>> file_path("state.safetensors").name
    'state.safetensors'
    """
    if not isinstance(given, str | os.PathLike) or not Path(given).name:
        raise UserError(f"a state's path is {given!r}: give that of a file, such as 'state.safetensors'")
    return Path(given)


def write_state(path: Path, network: Network, adapter: Adapter, tensors: Tensors) -> None:
    """Write the tensors with the method's name and parameters, wholly and to the disk."""
    copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = {"method": _method(adapter), "made_by": identity(network, adapter)}
    with whole(path) as part:
        save_file(copies, part, metadata=header)
        with part.open("rb") as file:
            os.fsync(file.fileno())


def read_state(path: Path, network: Network, adapter: Adapter) -> Tensors:
    """Read the tensors, or say why they are not of this model and method."""
    if not path.is_file():
        raise UserError(f"no state at {path}: give the path that `save` was given")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        method, made_by = header["method"], header["made_by"]
        name, parameters = json.loads(method)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no state of an adapted model: give the path that `save` was given") from error
    if method != _method(adapter):
        if name == adapter.name and parameters.keys() != parameters_of(adapter).keys():
            raise UserError(f"{path} was saved by another version of fedctta: begin without it, or use that version")
        words = ", ".join([repr(name), *(f"{key}={value!r}" for key, value in parameters.items())])
        raise UserError(f"{path} is a state of another method: adapt the module with {words}")
    if made_by != identity(network, adapter):
        raise UserError(
            f"{path} is a state of another model or of other weights: adapt the module that it was saved from"
        )
    return tensors


def _method(adapter: Adapter) -> str:
    return json.dumps([adapter.name, parameters_of(adapter)], sort_keys=True, default=str)
