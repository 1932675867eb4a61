"""The measurements as files: bench.md, bench.json and bench.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import fedctta
from fedctta.bench.cells import WAYS, Plan
from fedctta.bench.figure import plot
from fedctta.bench.measure import Row, Skipped
from fedctta.bench.table import RATIOS, markdown
from fedctta.files import whole
from fedctta.machine import hardware
from fedctta.report.figures import save_png


def write(rows: Sequence[Row], plan: Plan, folder: Path, picture: bool = True) -> Path:
    """Write what is measured so far and return the path of the Markdown page."""
    page = folder / "bench.md"
    for path, text in (
        (page, markdown(rows, plan)),
        (folder / "bench.json", json.dumps(summary(rows, plan), indent=1, allow_nan=False) + "\n"),
    ):
        with whole(path) as part:
            part.write_text(text, encoding="utf-8", newline="\n")
    if picture and rows:
        with whole(folder / "bench.png") as part:
            save_png(plot(rows, plan.ways), part)
    return page


def summary(rows: Sequence[Row], plan: Plan) -> dict[str, Any]:
    """Return everything as plain values; what is not known is left out."""
    return {
        "fedctta": fedctta.__version__,
        "torch": torch.__version__,
        "hardware": hardware(plan.device),
        "device": plan.device.type,
        "precision": plan.precision,
        **({} if plan.storage == "float32" else {"storage": plan.storage}),
        "images_and_weights": "random",
        "ways": {way: WAYS[way] for way in plan.ways},
        "cells": [
            asdict(row.cell)
            | ({"image_passes_a_client": row.cell.passes} if any(map(row.timing, row.found)) else {})
            | {"ways": {way: _way(row, way) for way in row.found}}
            | {"ratios": {f"{a}/{b}": row.ratio(a, b) for a, b in RATIOS if row.timing(a) and row.timing(b)}}
            for row in rows
        ],
    }


def _way(row: Row, way: str) -> dict[str, Any]:
    found = row.found[way]
    if isinstance(found, Skipped):
        return {"skipped": found.reason}
    return {
        "ms_a_round": 1000 * found.median,
        "images_per_second": row.images_per_second(way),
        "peak_memory_mb": found.peak_mb,
        "rounds_ms": [1000 * seconds for seconds in found.seconds],
    }
