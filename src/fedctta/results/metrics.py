"""What counts of right predictions say, beyond their mean. Pure functions of arrays; labels end here.

Counts are by class: `seen`, `right` and `predicted` have the classes on their last axis. A class that was never seen
has no accuracy: it is nan, is left out of means, and is counted by `absent_classes`; it is never scored zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[Any]
Floats = NDArray[np.float64]
BINS = 15  # of confidence, for the calibration error
MILLION = 1_000_000  # confidences are summed as whole millionths, so that no order of adding matters


def share(part: Counts, of: Counts) -> Floats:
    """Return part / of, nan where there is nothing."""
    ratio: Floats = np.divide(part, of, out=np.full(np.shape(of), np.nan), where=np.asarray(of) > 0)
    return ratio


def mean_class_accuracy(seen: Counts, right: Counts) -> float:
    """Mean of the accuracies of all classes that were seen."""
    return _mean(share(right, seen))


def absent_classes(seen: Counts) -> int:
    """Return how many classes were never seen."""
    return int((np.asarray(seen) == 0).sum())


def macro_f1(seen: Counts, right: Counts, predicted: Counts) -> float:
    """Mean over the classes seen of F1 = 2 TP / (2 TP + FP + FN) = 2 right / (seen + predicted)."""
    f1 = share(2 * np.asarray(right), np.asarray(seen) + predicted)
    return _mean(np.where(np.asarray(seen) > 0, f1, np.nan))


def mean_iou(seen: Counts, right: Counts, predicted: Counts) -> float:
    """Mean over the classes seen of intersection over union = right / (seen + predicted - right)."""
    iou = share(right, np.asarray(seen) + predicted - right)
    return _mean(np.where(np.asarray(seen) > 0, iou, np.nan))


def worst_client(accuracy: Floats) -> float:
    """Return the lowest accuracy of any client; nan if no client saw a label."""
    known = accuracy[np.isfinite(accuracy)]
    return float(known.min()) if len(known) else float("nan")


def major_and_minor(seen: Counts, right: Counts) -> tuple[Floats, Floats]:
    """Accuracies [N] of each client's most and least frequent class, of counts [N, K]; classes it never saw aside."""
    seen = np.asarray(seen)
    major = np.argmax(seen, axis=-1)
    minor = np.argmin(np.where(seen > 0, seen, np.iinfo(seen.dtype).max), axis=-1)
    accuracy = share(right, seen)
    who = np.arange(len(seen))
    return accuracy[who, major], accuracy[who, minor]


def score(metric: str, seen: Counts, right: Counts, predicted: Counts) -> float:
    """Return one number of counts [N, K] by client and class; see `SCORES` for the names."""
    return SCORES[metric](np.asarray(seen), np.asarray(right), np.asarray(predicted))


SCORES: dict[str, Callable[[Counts, Counts, Counts], float]] = {
    "accuracy": lambda seen, right, _: float(share(right.sum(), seen.sum())),
    "mean_class_accuracy": lambda seen, right, _: mean_class_accuracy(seen.sum(0), right.sum(0)),
    "macro_f1": lambda seen, right, predicted: macro_f1(seen.sum(0), right.sum(0), predicted.sum(0)),
    "miou": lambda seen, right, predicted: mean_iou(seen.sum(0), right.sum(0), predicted.sum(0)),
    "dice": lambda seen, right, predicted: macro_f1(seen.sum(0), right.sum(0), predicted.sum(0)),  # by another name
    "worst_client": lambda seen, right, _: worst_client(share(right.sum(1), seen.sum(1))),
    "major": lambda seen, right, _: _mean(major_and_minor(seen, right)[0]),
    "minor": lambda seen, right, _: _mean(major_and_minor(seen, right)[1]),
}


def calibration_error(bins: Counts) -> float:
    """Expected calibration error: sum_b n_b / n |accuracy_b - confidence_b|.

    `bins` [BINS, 3] hold predictions, the sum of their confidences in millionths, and how many were right.
    """
    count, confidence, right = (np.asarray(bins)[:, k].astype(np.float64) for k in range(3))
    gaps = np.abs(share(right, count) - share(confidence / MILLION, count))
    return float(np.nansum(gaps * count) / count.sum()) if count.sum() else float("nan")


def forgetting(accuracy: Counts, rounds: NDArray[np.int64], domain: NDArray[np.int32]) -> float:
    """Mean over domains d left before the end of accuracy(when d was last left, d) - accuracy(end, d); nan if none.

    `accuracy`[C, D] was measured after the given rounds[C]; `domain`[T, N] says who was where.
    """
    lost = []
    for k in range(accuracy.shape[1]):
        met = np.flatnonzero((domain == k).any(1))
        if len(met) and met[-1] < rounds[-1]:
            lost.append(float(accuracy[np.searchsorted(rounds, met[-1]), k] - accuracy[-1, k]))
    return float(np.mean(lost)) if lost else float("nan")


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def images_since_shift(domain: Counts, shown: Counts) -> NDArray[np.int64]:
    """Return how many images each client has seen in its stay before each slot, [T, N]; -1 where it is absent.

    A stay begins where the domain[T, N] differs from that of the slot before, or the client was absent there.
    """
    since = np.zeros(domain.shape, np.int64)
    for t in range(1, len(domain)):
        since[t] = np.where(domain[t] == domain[t - 1], since[t - 1] + shown[t - 1], 0)
    since[domain < 0] = -1
    return since
