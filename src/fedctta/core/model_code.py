"""What a model computes, beyond its weights: its layers and the code that defines them.

A model's function may be edited while its weights stay as they are. A record is that of one model only, so it is told
apart by the model's layers as torch prints them, and by the source files of the function that makes it and of every
class of layer that is neither torch's nor this package's (whose version is known). Not seen are other files that these
import functions from.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from torch import nn

KNOWN = ("torch.", "fedctta.")  # told apart by their versions


def hash_code(model: nn.Module, place: str) -> bytes:
    """Return a hash of the model's layers and code; `place` names what made it, as module:function."""
    digest = hashlib.sha256(re.sub(" at 0x[0-9a-f]+", "", repr(model)).encode())
    for text in sorted(set(_sources(model, place))):
        digest.update(text)
    return digest.digest()


def _sources(model: nn.Module, place: str) -> Iterator[bytes]:
    """Yield the source of every module of code the model is made by."""
    classes = {cls for layer in model.modules() for cls in type(layer).__mro__ if issubclass(cls, nn.Module)}
    names = {cls.__module__ for cls in classes if not f"{cls.__module__}.".startswith(KNOWN)}
    if ":" in place:
        names.add(place.partition(":")[0])
    for name in names:
        module = sys.modules.get(name)
        if module is not None:
            yield _source(module)


def _source(module: ModuleType) -> bytes:
    """Return a module's source: its file as it is now; nothing where there is none, as in a terminal."""
    try:
        return Path(inspect.getsourcefile(module) or "").read_bytes()
    except (OSError, TypeError):
        return b""
