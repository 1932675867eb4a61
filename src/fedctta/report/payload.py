"""What the page's charts are drawn from, as plain JSON values."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedctta.report.colours import pens
from fedctta.report.columns import Column, methods
from fedctta.report.curves import accuracy_by_domain, accuracy_over_time, groups, spread_out
from fedctta.report.overlaps import coincidence, near_dots, step_aside, together
from fedctta.report.titles import is_idle, is_method
from fedctta.report.weights import mean_weights, scale_floor, weights_there
from fedctta.results.records import Record

MOST_POINTS = 600  # of a curve
MOST_MATRICES = 150  # of a run
MATRIX_BYTES = 700_000  # of all matrices together, before base64
MOST_GROUPS = 40
_ABSENT = 255


def payload(columns: Sequence[Column]) -> dict[str, Any]:
    """Gather pens, curves, domains and collaboration matrices of all columns."""
    colours = pens(methods(columns))
    return {
        "pens": {label: {"colour": pen.colour, "dashed": pen.dashed} for label, pen in colours.items()},
        "columns": [_column(column) for column in columns],
        **_matrices(columns),
    }


def _column(column: Column) -> dict[str, Any]:
    first = next(iter(column.methods.values()))[0]
    curves = {label: accuracy_over_time(runs) for label, runs in column.methods.items()}
    rounds = max(len(curve) for curve in curves.values())
    at = spread_out(rounds, MOST_POINTS)
    by_domain = {label: accuracy_by_domain(runs) for label, runs in column.methods.items()}
    every = dict.fromkeys(name for runs in column.methods.values() for run in runs for name in run.domains)
    met = [name for name in every if any(name in found for found in by_domain.values())]
    dots = np.array([[found.get(name, np.nan) for name in met] for found in by_domain.values()])  # [methods, domains]
    aside = np.array([step_aside(row, near_dots(dots)) for row in dots.T.tolist()]).reshape(dots.T.shape).T
    return {
        "name": column.name,
        "rounds": rounds,
        "at": at.tolist(),
        "curves": {label: [_value(curve, int(t)) for t in at] for label, curve in curves.items()},
        "groups": [{"name": g.name, "stretches": g.stretches} for g in groups(first)[:MOST_GROUPS]],
        "domains": first.domains,
        "met": met,
        "together": together(curves),
        "coincidence": coincidence(curves),
        "byDomain": {label: [_round(value) for value in row] for label, row in zip(by_domain, dots, strict=True)},
        "aside": {label: row.tolist() for label, row in zip(by_domain, aside, strict=True)},
    }


def _matrices(columns: Sequence[Column]) -> dict[str, Any]:
    """Take the first seed of every method and column, with as many rounds as its share of the room holds.

    Matrices too large for that are left out and counted. The page opens with the first one of a method.
    """
    runs = [
        (column.name, label, found[0])
        for column in columns
        for label, found in column.methods.items()
        if not is_idle(found[0].settings) and found[0].collaboration.size
    ]
    share = MATRIX_BYTES // max(1, len(runs))
    fitting = [(name, label, run) for name, label, run in runs if 2 * run.collaboration[0].size <= share]
    matrices = [_matrix(name, label, run, share) for name, label, run in fitting]
    methods_first = sorted(range(len(fitting)), key=lambda k: not is_method(fitting[k][1]))
    return {"matrices": matrices, "leftOut": len(runs) - len(fitting), "opened": next(iter(methods_first), 0)}


def _matrix(column: str, label: str, run: Record, share: int) -> dict[str, Any]:
    clients = run.collaboration.shape[1]
    most = min(MOST_MATRICES, share // clients**2 - 1)
    kept = spread_out(len(run.collaboration), most)
    at = run.collaboration_rounds[kept]
    met = np.where(run.domain[at] < 0, _ABSENT, run.domain[at])
    mean = mean_weights(run)
    return {
        "name": f"{label} (seed {run.settings.get('seed', '-')})",
        "column": column,
        "clients": clients,
        "floor": round(scale_floor(clients), 6),
        "rounds": at.tolist(),
        "weights": _packed(weights_there(run)[kept]),
        "mean": {**_packed(mean), "there": np.isfinite(mean).all(1).tolist()},
        "domains": run.domains,
        "met": _text(met.astype(np.uint8)),
    }


def _packed(weights: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """Quantise to a byte each, w = top * (q / 255)^2: the square keeps small weights apart; nan is 0."""
    plain = np.clip(np.nan_to_num(weights), 0, None)
    top = float(plain.max()) or 1.0
    return {"top": round(top, 6), "bytes": _text(np.round(255 * np.sqrt(plain / top)).astype(np.uint8))}


def _text(array: NDArray[np.uint8]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _value(curve: NDArray[np.float64], at: int) -> float | None:
    return _round(float(curve[at])) if at < len(curve) else None


def _round(value: float) -> float | None:
    return round(value, 2) if isfinite(value) else None
