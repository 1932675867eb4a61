"""The report as one HTML file that needs nothing else: no server, no network, no other file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from fedctta.report.colours import pens
from fedctta.report.columns import arrange, flat, methods, varying
from fedctta.report.harm import MARK
from fedctta.report.health import health_section
from fedctta.report.masks import masks_section
from fedctta.report.payload import payload
from fedctta.report.table import Cell, Table
from fedctta.report.text import html_table, human_bytes, number
from fedctta.report.titles import is_bound
from fedctta.results.records import Record

_SCRIPTS = ("page.js", "lines.js", "dots.js", "matrix.js")


def page(records: Sequence[Record], table: Table, title: str) -> str:
    """Return the page's text: every word of a run is escaped, and a missing number is null, never NaN."""
    columns = arrange(records)
    data = payload(columns)
    parts = {
        "counted": "pixels" if table.dense else "images",
        "masks": masks_section(columns),
        "health": health_section(columns, pens(methods(columns))),
        "title": escape(title),
        "style": _asset("page.css"),
        "lead": _lead(records, table),
        "results": _results(table),
        "measures": _by_method(table, _measures(table)),
        "cost": _by_method(table, _COSTS),
        "settings": _settings(records),
        "data": _json(data),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("template.html"))


def _asset(name: str) -> str:
    return (files("fedctta.report") / "page" / name).read_text(encoding="utf-8")


def _json(data: Any) -> str:
    """Write JSON that cannot end the element it stands in."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _lead(records: Sequence[Record], table: Table) -> str:
    """Say in a few sentences what was run and what came out."""
    runs = [record.settings for record in records]

    def all_of(key: str) -> str:
        found = dict.fromkeys(str(run[key]) for run in runs if key in run and run[key] != "none")
        return ", ".join(found)

    facts = [
        ("data", all_of("dataset") + (f" at severity {all_of('severity')}" if all_of("severity") else "")),
        ("stream", all_of("stream")),
        ("model", all_of("model")),
        ("adapter", all_of("adapter")),
        ("clients", all_of("clients")),
        ("batch", all_of("batch")),
        ("rounds", ", ".join(dict.fromkeys(str(len(record.seen)) for record in records))),
        ("seeds", all_of("seed")),
    ]
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts if text)
    count = f"{len(records)} run{'s' if len(records) != 1 else ''} of {len(methods(arrange(records)))} method"
    words = " ".join([count + ("s." if len(table.rows) != 1 else "."), *_verdicts(table)])
    notes = dict.fromkeys(str(note) for run in runs for note in run.get("notes", ()))
    told = "".join(f'<p class="note harm">{escape(sentence)}</p>' for sentence in table.warnings())
    told += "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<p class="lead">{escape(words)}</p><dl class="facts">{listed}</dl>{told}'


def _verdicts(table: Table) -> Iterable[str]:
    """Name each column's best method and its distance from the next; the upper bound does not compete."""
    if len(table.columns) > 2:
        return
    for k, column in enumerate(table.columns):
        ours = [(row.cells[k], row.label) for row in table.rows if not is_bound(row.label)]
        ranked = sorted(((c.mean, name) for c, name in ours if c and isfinite(c.mean)), reverse=True)
        if len(ranked) > 1:
            (top, name), (second, other) = ranked[:2]
            gap = f"{top - second:.2f} points above {other}"
            yield f"On {column}, {name} reaches {top:.2f} %, {gap}."


def _results(table: Table) -> str:
    papers = [table.has_published(k) for k in range(len(table.columns))]
    top = "".join(
        f'<th scope="colgroup" colspan="{3 if paper else 1}" class="{"group" if paper else "n"}">{escape(name)}</th>'
        for name, paper in zip(table.columns, papers, strict=True)
    )
    under = "".join(
        '<th scope="col" class="n">ours</th>'
        + ('<th class="n">paper</th><th class="n">difference</th>' if paper else "")
        for paper in papers
    )
    best = [table.best(k) for k in range(len(table.columns))]
    below = {(harm.method, harm.column): harm.points for harm in table.harm}
    body = "".join(
        ('<tr class="bound">' if is_bound(row.label) else "<tr>")
        + f'<th scope="row">{_swatch(row.label)}</th>'
        + "".join(
            _accuracy(cell, row.label in leaders, paper, below.get((row.label, column)))
            for column, cell, leaders, paper in zip(table.columns, row.cells, best, papers, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    head = f'<tr><th scope="col" rowspan="{1 + any(papers)}">method</th>{top}</tr>'
    head += f"<tr>{under}</tr>" if any(papers) else ""
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _accuracy(cell: Cell | None, best: bool, paper: bool, below: float | None = None) -> str:
    if cell is None:
        return '<td class="n none">-</td>' * (3 if paper else 1)
    spread = f'<span class="spread"> ± {cell.std:.2f}</span>' if isfinite(cell.std) else ""
    mean = number(cell.mean)
    mark = "" if below is None else f' <span class="harm" title="{below:.1f} points below doing nothing">{MARK}</span>'
    ours = f'<td class="n">{f"<strong>{mean}</strong>" if best else mean}{spread}{mark}</td>'
    if not paper:
        return ours
    gap = f"{cell.difference:+.2f}".replace("-", "−") if isfinite(cell.difference) else "-"
    return f'{ours}<td class="n quiet">{number(cell.published)}</td><td class="n quiet">{gap}</td>'


Measures = Mapping[str, Callable[[Cell], str]]


def _by_method(table: Table, measures: Measures) -> str:
    """Show some values of every cell; where columns are many, a method's name is written once."""
    head = ["method", "setting", *measures]
    lines = []
    for row in table.rows:
        name = _swatch(row.label)
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell:
                lines.append([name, escape(column), *(write(cell) for write in measures.values())])
                name = ""
    if len(table.columns) == 1:
        head, lines = head[:1] + head[2:], [line[:1] + line[2:] for line in lines]
    return html_table(head, lines, words=min(2, len(table.columns)))


def _measures(table: Table) -> Measures:
    """Return what is shown by class and client; some measures only where there is something to show."""
    absent = any(cell and cell.absent_classes for row in table.rows for cell in row.cells)
    fields = {
        **({"mIoU": "miou"} if table.dense else {}),
        **{"class mean": "mean_class_accuracy", table.f1_name: "macro_f1", "worst client": "worst_client"},
        **{"major class": "major", "minor class": "minor", "ECE": "calibration_error", "entropy": "mean_entropy"},
        **({"absent classes": "absent_classes"} if absent else {}),
        **({"forgetting": "forgetting"} if table.forgets else {}),
    }
    return {name: partial(_number_of, field) for name, field in fields.items()}


def _number_of(field: str, cell: Cell) -> str:
    return number(getattr(cell, field), 0 if field == "absent_classes" else 2)


_COSTS: Measures = {
    "sent": lambda cell: human_bytes(cell.bytes_up),
    "received": lambda cell: human_bytes(cell.bytes_down),
    "time": lambda cell: f"{number(cell.seconds, 1)} s",
    "memory": lambda cell: f"{number(cell.peak_memory_mb, 0)} MB",
    "same-domain weight": lambda cell: number(cell.same_domain_weight, 3),
    "seeds": lambda cell: str(cell.seeds),
}


def _settings(records: Sequence[Record]) -> str:
    """Show what all runs share once, and what differs run by run."""
    runs = [flat(record.settings) for record in records]
    told = {"seed", *varying(runs, apart=())}
    differing = [key for key in dict.fromkeys(k for run in runs for k in run) if key in told]
    shared = {key: value for run in runs for key, value in run.items() if key not in differing}
    common = [[escape(key), f"<code>{escape(str(value))}</code>"] for key, value in sorted(shared.items())]
    each = [[escape(str(run.get(key, "-"))) for key in differing] for run in runs]
    first = html_table(["setting", "value"], common, words=2)
    return f'<h3>Same in all runs</h3><div class="wide">{first}</div>' + (
        f'<h3>Run by run</h3><div class="wide">{html_table(differing, each, words=len(differing))}</div>'
    )


def _swatch(label: str) -> str:
    return f'<span class="swatch" data-method="{escape(label)}"></span>{escape(label)}'
