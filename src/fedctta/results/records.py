"""What is kept of one run: its settings, its numbers, and the arrays behind its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.files import open_tensors, write_tensors
from fedctta.results import metrics
from fedctta.results.health import ClientHealth, health_of


def _none() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


FIRST_IMAGES = 10  # of a stay, which `accuracy_after_shift` is of


@dataclass(frozen=True)
class Record:
    """One finished run.

    `settings` is what was asked (dataset, model, adapter, aggregator, stream, seed, and so on, with each method's
    own parameters). The arrays count, for every slot t and client i, the labelled images seen and those predicted
    right, and name the domain that was active (-1: the client was absent). Images of clients that lie count as not
    labelled. `shown` counts all images that were predicted, where not all have labels (else it is empty). The arrays by
    class count, for every domain, client and class, the images seen, those predicted right, and those predicted to be
    of that class;
    `calibration` is what `metrics.calibration_error` reads. `collaboration[k]` is the matrix W
    of round `collaboration_rounds[k]`; long runs with many clients keep an even sample of the rounds, and runs with
    more than 4,096 clients keep none (see `engine.tally.count_kept`). `retained[k]` are
    accuracies on every domain met by round `retained_rounds[k]` (see `retention`; empty where that was not asked for).

    With `check`, the arrays of health have what was known of every client after every slot, without labels: means over
    its last batches (nan: nothing yet), and who answered (0: it was absent, 1: the adapted model, 2: the source model).
    `alarms` are pairs of client and slot.

    `origin` says by which description the run was asked for (`fingerprint`, `words`), with which `version` and when it
    was `made`; runs of objects and of earlier versions have none.

    In a dense run pixels are counted instead of images. Its `pictures` hold one image per domain, with the true and the
    predicted class as fourth and fifth channel.
    """

    settings: Mapping[str, Any]
    domains: tuple[str, ...]
    seen: NDArray[np.int32]  # [T, N]
    correct: NDArray[np.int32]  # [T, N]
    domain: NDArray[np.int32]  # [T, N], index into `domains`
    class_seen: NDArray[np.int32]  # [D, N, classes]
    class_right: NDArray[np.int32]  # [D, N, classes]
    class_predicted: NDArray[np.int32]  # [D, N, classes]
    calibration: NDArray[np.int64]  # [bins, 3]
    entropy: NDArray[np.float32]  # [T, N], mean over the batch
    collaboration: NDArray[np.float32]  # [K, N, N]
    collaboration_rounds: NDArray[np.int64]  # [K]
    same_domain_weight: float
    bytes_up: int
    bytes_down: int
    seconds: float
    peak_memory_mb: float
    retained: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # [C, D]
    retained_rounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # [C]
    shown: NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))  # [T, N]
    pictures: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 0, 5), np.uint8))  # [D, H, W, 5]
    estimate: NDArray[np.float32] = field(default_factory=_none)  # [T, N], of the accuracy of what answers
    source_estimate: NDArray[np.float32] = field(default_factory=_none)  # [T, N], of the source model's accuracy
    disagreement: NDArray[np.float32] = field(default_factory=_none)  # [T, N], with the source model
    top_share: NDArray[np.float32] = field(default_factory=_none)  # [T, N], of the class predicted most often
    answers: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))  # [T, N]
    alarms: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))  # [alarms, 2]
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def watched(self) -> bool:
        """Whether the clients' health was watched."""
        return bool(self.answers.size)

    @property
    def health(self) -> tuple[ClientHealth, ...]:
        """How every client fared at the end, told without labels; nothing unless it was watched (`check`)."""
        return health_of(self.answers, self.alarms, self._health_arrays()) if self.watched else ()

    def _health_arrays(self) -> dict[str, NDArray[np.float32]]:
        means = {"accuracy": self.estimate, "source_accuracy": self.source_estimate}
        means |= {"disagreement": self.disagreement, "top_share": self.top_share}
        return {**means, "entropy": np.where(self.answers > 0, self.entropy, np.nan)}

    @property
    def dense(self) -> bool:
        """Whether pixels were predicted, and not images."""
        return bool(self.pictures.size)

    @property
    def images(self) -> NDArray[np.int32]:
        """Images (pixels of a dense run) predicted in every slot by every client, [T, N]."""
        return self.shown if self.shown.size else self.seen

    @property
    def present(self) -> int:
        """Number of clients that were ever there."""
        return max(1, int((self.domain >= 0).any(0).sum()))

    @property
    def labelled(self) -> bool:
        """Whether any image had a label: without, there is no accuracy."""
        return bool(self.seen.any())

    @property
    def accuracy(self) -> float:
        """Share of all labelled images predicted right; nan if none has a label."""
        return _share(self.correct.sum(), self.seen.sum())

    @property
    def accuracy_after_shift(self) -> float:
        """Accuracy in the first ten images of stays in a domain: in the batches that begin within them."""
        return self.accuracy_since_shift(0, FIRST_IMAGES)

    def accuracy_since_shift(self, first: int, last: int) -> float:
        """Accuracy in the batches that begin after `first` to below `last` images of a stay."""
        since = metrics.images_since_shift(self.domain, self.images)
        there = (since >= first) & (since < last)
        return _share(self.correct[there].sum(), self.seen[there].sum())

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

    @property
    def class_accuracy(self) -> list[float]:
        """Accuracy of every class over all clients; nan for one that was never seen."""
        return [float(v) for v in metrics.share(self.class_right.sum((0, 1)), self.class_seen.sum((0, 1)))]

    @property
    def mean_class_accuracy(self) -> float:
        """Mean over the classes that were seen."""
        return metrics.mean_class_accuracy(self.class_seen.sum((0, 1)), self.class_right.sum((0, 1)))

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that were seen."""
        by_class = (self.class_seen, self.class_right, self.class_predicted)
        return metrics.macro_f1(*(counts.sum((0, 1)) for counts in by_class))

    @property
    def miou(self) -> float:
        """Mean intersection over union of the classes that were seen; for dense runs."""
        by_class = (self.class_seen, self.class_right, self.class_predicted)
        return metrics.mean_iou(*(counts.sum((0, 1)) for counts in by_class))

    @property
    def dice(self) -> float:
        """Mean Dice coefficient of the classes that were seen, 2 right / (seen + predicted); for dense runs."""
        return self.macro_f1

    @property
    def miou_by_domain(self) -> dict[str, float]:
        """Mean intersection over union in every domain that was met; for dense runs."""
        counts = (counts.sum(1) for counts in (self.class_seen, self.class_right, self.class_predicted))
        rows = zip(self.domains, *counts, strict=True)
        return {name: metrics.mean_iou(s, r, p) for name, s, r, p in rows if s.any()}

    @property
    def absent_classes(self) -> int:
        """Number of classes that nobody saw."""
        return metrics.absent_classes(self.class_seen.sum((0, 1)))

    @property
    def worst_client(self) -> float:
        """Accuracy of the client with the lowest accuracy."""
        return metrics.worst_client(np.array(self.accuracy_by_client))

    @property
    def major_by_client(self) -> list[float]:
        """Accuracy of every client in the class it sees most often."""
        return [float(v) for v in metrics.major_and_minor(self.class_seen.sum(0), self.class_right.sum(0))[0]]

    @property
    def minor_by_client(self) -> list[float]:
        """Accuracy of every client in the class it sees least often, of those it sees."""
        return [float(v) for v in metrics.major_and_minor(self.class_seen.sum(0), self.class_right.sum(0))[1]]

    @property
    def forgetting(self) -> float:
        """Accuracy lost on earlier domains by the end; nan unless it was measured (see `retention`)."""
        return metrics.forgetting(self.retained, self.retained_rounds, self.domain)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error over 15 bins of confidence."""
        return metrics.calibration_error(self.calibration)

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of the predictions, in nats."""
        shown = self.images
        return _share((self.entropy * shown).sum(), shown.sum())

    def summary(self) -> dict[str, Any]:
        """Return the run as plain values: the settings, then the numbers (None where nothing was seen)."""
        what = "pixels" if self.dense else "images"
        overlap: dict[str, Any] = {}
        if self.dense:
            overlap = {"miou": _known(self.miou), "dice": _known(self.dice), "miou_by_domain": self.miou_by_domain}
        return {
            **self.settings,
            "rounds": int(self.seen.shape[0]),
            what: int(self.images.sum()),
            **({"labelled_images": int(self.seen.sum())} if self.shown.size else {}),
            **overlap,
            "accuracy": _known(self.accuracy),
            "accuracy_after_shift": _known(self.accuracy_after_shift),
            "accuracy_by_domain": {name: _known(value) for name, value in self.accuracy_by_domain.items()},
            "accuracy_by_client": [_known(value) for value in self.accuracy_by_client],
            "accuracy_by_slot": [_known(value) for value in self.accuracy_by_slot],
            "mean_class_accuracy": _known(self.mean_class_accuracy),
            "macro_f1": _known(self.macro_f1),
            "class_accuracy": [_known(value) for value in self.class_accuracy],
            "absent_classes": self.absent_classes,
            "worst_client": _known(self.worst_client),
            "major_by_client": [_known(value) for value in self.major_by_client],
            "minor_by_client": [_known(value) for value in self.minor_by_client],
            "calibration_error": _known(self.calibration_error),
            "mean_entropy": _known(self.mean_entropy),
            "forgetting": _known(self.forgetting),
            **({"health": [client.plain() for client in self.health]} if self.watched else {}),
            "same_domain_weight": self.same_domain_weight,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
        }

    def save(self, path: Path) -> None:
        """Write the record as one safetensors file, settings and numbers in its header."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        header = {"settings": dict(self.settings), "domains": self.domains, "origin": dict(self.origin)}
        header |= {n: getattr(self, n) for n in _NUMBERS}
        write_tensors(path, arrays, "record", header, framework="numpy")

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what `save` wrote."""
        with open_tensors(path, "record", _damaged(path), "numpy") as (header, file):
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
            fields: dict[str, Any] = {**header, **arrays, "domains": tuple(header["domains"])}
            return cls(**fields)


def read_header(path: Path) -> dict[str, Any]:
    """Return what a saved record says without its arrays: `settings`, `origin`, `seconds` and other single numbers."""
    with open_tensors(path, "record", _damaged(path), "numpy") as (header, _):
        return {"origin": {}, **header}


def _damaged(path: Path) -> str:
    return f"{path} is damaged or not a run record: delete it and run again"


_ARRAYS = (
    *("seen", "correct", "domain", "class_seen", "class_right", "class_predicted", "calibration", "entropy"),
    *("collaboration", "collaboration_rounds", "retained", "retained_rounds", "shown", "pictures"),
    *("estimate", "source_estimate", "disagreement", "top_share", "answers", "alarms"),
)
_NUMBERS = ("same_domain_weight", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")


def to_json(value: Any) -> Any:
    """Return a value as JSON can hold it, which has no infinity: "inf" and "-inf" as text, null for what is not known.

    >>> to_json({"delta": float("inf"), "accuracy": [0.5, float("nan")]})
    {'delta': 'inf', 'accuracy': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None if np.isnan(value) else str(float(value))
    return value


def _share(part: Any, whole_: Any) -> float:
    return float(part) / float(whole_) if whole_ else float("nan")


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
