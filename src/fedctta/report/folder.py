"""The report as a folder: the page, the tables, the figures, and every number in open formats."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from matplotlib.figure import Figure

from fedctta.files import whole
from fedctta.report.colours import pens
from fedctta.report.columns import Column, arrange, flat, methods
from fedctta.report.figures import collaboration_figure, cost_figure, domain_figure, save_png, time_figure
from fedctta.report.health import health_figure
from fedctta.report.masks import masks_figure
from fedctta.report.page import page
from fedctta.report.table import Published, results_table
from fedctta.report.titles import TITLE
from fedctta.results.records import Record

_LISTS = {
    *("accuracy_by_domain", "accuracy_by_client", "accuracy_by_slot"),
    *("class_accuracy", "major_by_client", "minor_by_client", "miou_by_domain", "health"),
}  # these have tables of their own
_HEALTH = {  # as columns of `by_client`, beside the true accuracy
    **{"accuracy": "estimated_accuracy", "source_accuracy": "estimated_source_accuracy", "by_source": "by_source"},
    **{name: name for name in ("entropy", "top_share", "disagreement", "answers", "alarms")},
}


def write_report(
    records: Sequence[Record],
    folder: Path,
    published: Published | None = None,
    title: str = TITLE,
) -> Path:
    """Write the whole report into `folder` and return the path of its page.

    `report.html` opens offline in any browser. `results` has one row per run; `by_domain`, `by_slot`,
    `by_client` and `collaboration` refer to its column `run`.
    """
    folder = Path(folder)
    columns = arrange(records)
    there = {id(run) for column in columns for runs in column.methods.values() for run in runs}
    records = [record for record in records if id(record) in there]  # one per setting, method and seed
    table = results_table(records, published)
    _write_text(folder / "table.md", f"# {' '.join(title.split())}\n\n{table.markdown()}")
    _write_text(folder / "table.csv", table.csv())

    named = _name_runs(records, columns)
    for name, rows in _tables(records, named).items():
        with whole(folder / f"{name}.csv") as part:
            pa.csv.write_csv(rows, part)
        _write_parquet(folder / f"{name}.parquet", rows)
    _write_parquet(folder / "collaboration.parquet", pa.concat_tables(_long(*run) for run in enumerate(records)))

    for name, figure in _figures(columns):
        with whole(folder / f"{name}.png") as part:
            save_png(figure, part)
    place = folder / "report.html"
    _write_text(place, page(records, table, title))
    return place


def _write_text(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _write_parquet(path: Path, rows: pa.Table) -> None:
    with whole(path) as part:
        pa.parquet.write_table(rows, part, compression="zstd")


def _name_runs(records: Sequence[Record], columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Give every run its number, method and column: what the other tables are joined on."""
    where: dict[int, tuple[str, list[str]]] = {}
    for column in columns:
        for label, runs in column.methods.items():
            for run in runs:
                where.setdefault(id(run), (label, []))[1].append(column.name)
    found = [where[id(record)] for record in records]
    return [{"run": k, "method": label, "column": "; ".join(names)} for k, (label, names) in enumerate(found)]


def _tables(records: Sequence[Record], named: Sequence[dict[str, Any]]) -> dict[str, pa.Table]:
    results, by_domain, by_slot, by_client = [], [], [], []
    for record, name in zip(records, named, strict=True):
        plain = {key: value for key, value in record.summary().items() if key not in _LISTS}
        results.append(name | flat(plain))
        for k, domain in enumerate(record.domains):
            overlap = {"miou": record.miou_by_domain.get(domain)} if record.dense else {}
            by_domain.append(name | {"domain": domain} | _counts(record, record.domain == k) | overlap)
        at_slot = {"seen": record.seen.sum(1), "correct": record.correct.sum(1)}
        by_slot += [name | {"slot": t} | row for t, row in enumerate(_rows(at_slot))]
        at_client = {"seen": record.seen.sum(0), "correct": record.correct.sum(0)}
        health = [each.plain() for each in record.health] or [{}] * len(record.seen[0])
        told = [{_HEALTH[key]: value for key, value in each.items() if key in _HEALTH} for each in health]
        by_client += [name | {"client": i} | row | told[i] for i, row in enumerate(_rows(at_client))]
    return {
        "results": _arrow(results),
        "by_domain": _arrow(by_domain),
        "by_slot": _arrow(by_slot),
        "by_client": _arrow(by_client),
    }


def _counts(record: Record, mask: np.ndarray[Any, Any]) -> dict[str, Any]:
    return next(_rows({"seen": record.seen[mask].sum()[None], "correct": record.correct[mask].sum()[None]}))


def _rows(counts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for seen, correct in zip(counts["seen"].tolist(), counts["correct"].tolist(), strict=True):
        yield {"seen": seen, "correct": correct, "accuracy": correct / seen if seen else None}


def _arrow(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Make a table of rows that need not have the same keys, nor one type for a key."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _one_type([row.get(name) for row in rows]) for name in names})


def _one_type(values: list[Any]) -> pa.Array:
    """Keep numbers and strings; write mixed or structured values as JSON text. Not known is null."""
    values = [None if isinstance(v, float) and np.isnan(v) else v for v in values]
    types = {type(v) for v in values if v is not None}
    if types == {int, float}:
        return pa.array([None if v is None else float(v) for v in values])
    if len(types) <= 1 and types <= {bool, int, float, str}:
        return pa.array(values, None if types else pa.float64())
    plain = [v if isinstance(v, str) or v is None else json.dumps(v, default=str) for v in values]
    return pa.array(plain, pa.string())


def _long(run: int, record: Record) -> pa.Table:
    kept, clients = record.collaboration.shape[:2]
    k, i, j = np.indices((kept, clients, clients)).reshape(3, -1)
    return pa.table(
        {
            "run": np.full(k.size, run, dtype=np.int32),
            "round": record.collaboration_rounds[k],
            "client": i.astype(np.int32),
            "peer": j.astype(np.int32),
            "weight": record.collaboration.reshape(-1).astype(np.float32),
        }
    )


def _figures(columns: Sequence[Column]) -> Iterator[tuple[str, Figure]]:
    colours = pens(methods(columns))
    for k, column in enumerate(columns):
        word = re.sub(r"[^A-Za-z0-9.=]+", "-", column.name).strip("-.")
        tail = f"-{k + 1}-{word}"[:80] if len(columns) > 1 else ""
        yield f"accuracy_over_time{tail}", time_figure(column, colours)
        yield f"accuracy_by_domain{tail}", domain_figure(column, colours)
        yield f"collaboration{tail}", collaboration_figure(column)
        yield f"cost{tail}", cost_figure(column, colours)
        if (masks := masks_figure(column)) is not None:
            yield f"masks{tail}", masks
        if (health := health_figure(column, colours)) is not None:
            yield f"health{tail}", health
