"""What one run leaves behind: its settings, its numbers, and the arrays behind its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from fedctta.errors import UserError
from fedctta.files import whole


@dataclass(frozen=True)
class Record:
    """One finished run.

    `settings` is what was asked (dataset, model, adapter, aggregator, stream, seed, and so on, with each method's
    own parameters). The arrays count, for every slot t and client i, the images seen and those predicted
    right, and name the domain that was active (-1: the client was absent). `collaboration[k]` is the matrix W
    of round `collaboration_rounds[k]`; long runs with many clients keep an even sample of the rounds.
    """

    settings: Mapping[str, Any]
    domains: tuple[str, ...]
    seen: NDArray[np.int32]  # [T, N]
    correct: NDArray[np.int32]  # [T, N]
    domain: NDArray[np.int32]  # [T, N], index into `domains`
    collaboration: NDArray[np.float32]  # [K, N, N]
    collaboration_rounds: NDArray[np.int64]  # [K]
    same_domain_weight: float
    bytes_up: int
    bytes_down: int
    seconds: float
    peak_memory_mb: float

    @property
    def accuracy(self) -> float:
        """Share of all images predicted right."""
        return _share(self.correct.sum(), self.seen.sum())

    @property
    def accuracy_by_domain(self) -> dict[str, float]:
        """Accuracy of every domain that was met."""
        masks = {name: self.domain == k for k, name in enumerate(self.domains)}
        return {
            name: _share(self.correct[mask].sum(), self.seen[mask].sum()) for name, mask in masks.items() if mask.any()
        }

    @property
    def accuracy_by_client(self) -> list[float]:
        """Accuracy of every client over its whole stream."""
        return [_share(c, s) for c, s in zip(self.correct.sum(0), self.seen.sum(0), strict=True)]

    @property
    def accuracy_by_slot(self) -> list[float]:
        """Accuracy over all clients in every slot."""
        return [_share(c, s) for c, s in zip(self.correct.sum(1), self.seen.sum(1), strict=True)]

    def summary(self) -> dict[str, Any]:
        """Return the run as plain JSON values: the settings, then the numbers (None where nothing was seen)."""
        return {
            **self.settings,
            "rounds": int(self.seen.shape[0]),
            "images": int(self.seen.sum()),
            "accuracy": self.accuracy,
            "accuracy_by_domain": self.accuracy_by_domain,
            "accuracy_by_client": [_known(value) for value in self.accuracy_by_client],
            "accuracy_by_slot": [_known(value) for value in self.accuracy_by_slot],
            "same_domain_weight": self.same_domain_weight,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
        }

    def save(self, path: Path) -> None:
        """Write the record as one safetensors file, settings and numbers in its header."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}
        header = {"settings": dict(self.settings), "domains": self.domains} | {n: getattr(self, n) for n in _NUMBERS}
        with whole(path) as part:
            save_file(arrays, part, metadata={"record": json.dumps(header)})

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                header = json.loads(file.metadata()["record"])
            fields: dict[str, Any] = {**header, **load_file(path), "domains": tuple(header["domains"])}
            return cls(**fields)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged or not a run record: delete it and run again") from error


_ARRAYS = ("seen", "correct", "domain", "collaboration", "collaboration_rounds")
_NUMBERS = ("same_domain_weight", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")


def _share(part: Any, whole_: Any) -> float:
    return float(part) / float(whole_) if whole_ else float("nan")


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
