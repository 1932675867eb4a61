"""Tensors from files of other programs: safetensors, or PyTorch's own format read without running code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedctta.errors import UserError

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *PICKLED)
INSIDE = ("state_dict", "model_state_dict", "model", "net")  # where training programs put the tensors
PREFIXES = ("module.", "model.", "_orig_mod.")  # what wrappers put before every name


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU; of a PyTorch file those of the model in it."""
    if not path.is_file():
        raise UserError(f"no weights at {path}: check the path, or use weights=auto")
    if path.suffix not in SUFFIXES:
        raise UserError(f"weights={path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            if not file.read(4).startswith((b"PK\x03\x04", b"\x80")):
                raise UserError(f"{path} is no PyTorch file: get the file itself, or make it again")
        held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors, which could run code when read: save model.state_dict() in place of the"
            " model"
        ) from error
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path} is damaged or of another kind than its name says: make it again") from error
    return _tensors_in(held, path)


def strip_prefix(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop what a wrapper put before all names, if the names are those that are wanted without it."""
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors) and not wanted.keys() & tensors.keys():
            return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _tensors_in(held: Any, path: Path) -> dict[str, Tensor]:
    """Return the model's tensors in what a PyTorch file holds: itself, or under a usual name."""
    for name in INSIDE:
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
    if isinstance(held, Mapping) and held and all(isinstance(value, Tensor) for value in held.values()):
        for name, tensor in held.items():
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise UserError(f"{path} holds {name} as a sparse or quantised tensor: save it as a dense one")
        return {str(name): tensor for name, tensor in held.items()}
    raise UserError(f"{path} holds no model's tensors by name: save model.state_dict()")
