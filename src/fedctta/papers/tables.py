"""Published tables and figures as TOML files: what to run, and the numbers the paper printed.

A file holds one or more panels. A panel is a grid: its columns are settings, its rows are methods, and a cell is the
experiment that puts a row into a column. `by` says what the printed numbers are: the mean of every cell, or, for a
panel with one column, the numbers by `domain`, by `position` in time (as many as there are domains), by `client` or by
`class` (counted from 0; `metric` is that of the mean).
A panel by `domain` with several columns is one table per column; it has no published numbers. `baseline` names the row
whose numbers are taken from all others': gains.
The number of the whole run stands last then, and a row has as many numbers as it has parts when run, or "-" for one not
known.
They are accuracies unless `metric` names another measure (by domain and client also `major` and `minor`; only as a mean
`forgetting` in points, which needs `retention`, and `seconds` a client).

    title = "..."
    paper = "FedCTTA (IJCNN 2025), Table I"
    run = { weights = "paper" }                  # for all cells
    quick = { slots = 5 }                        # what --quick changes; false at a row or column: not run then

    [[panel]]
    name = "CIFAR-10-C"
    columns.niid = { stream = "niid" }
    columns.iid = { stream = "iid" }
    rows.FedAvg = { aggregator = "fedavg" }
    published.FedAvg = [61.45, [67.41, 0.27]]     # in the order of the columns; [mean, spread]; "-" is not known;
                                                  # "64.5 + 5.3" is not printed, but follows from what is

Source models that are not there are trained before the first run, on the domains that `weights` names ("photo+art").
`pretrain` adds words of `fedctta pretrain` to that; `pretrain.quick` adds those for weights whose name ends in "-quick"
(or is "quick"). A file with `presets` in place of panels ranks the methods of these presets.

`seeds` is how many a page should have, of the file or of a panel; `fedctta reproduce all` plays so many. A page with
fewer says so. Each `[[claim]]` is a sentence of the paper (`says`), whether it `holds` here ("yes", "no", "partly" or
"open"), what we found (`here`), and perhaps what we think the reason is (`why`). `page` is where the page lies, seen
from the folder of results, if not under the file's name.

Later ones win: the file's `run`, the panel's, the column's, the row's; `quick` likewise, on top. A value of "slots" is
the cell's number of slots: `fedavgm.restart = "slots"` restarts with every domain, however long it lasts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Literal, get_args

from fedctta.errors import UserError, unknown
from fedctta.runs.preset_files import published, read_toml
from fedctta.runs.settings import Experiment, dotted, single

By = Literal["mean", "domain", "position", "client", "class"]
Metric = Literal[
    "accuracy",
    "mean_class_accuracy",
    "macro_f1",
    "miou",
    "dice",
    "worst_client",
    "major",
    "minor",
    "forgetting",
    "seconds",
]
Holds = Literal["yes", "no", "partly", "open"]
Figure = Literal["none", "dots", "lines", "matrices", "client"]
Settings = Mapping[str, Any]
Number = tuple[float, float]  # mean and spread; nan: not printed


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, whether it holds here, what we found, and what we think the reason is."""

    says: str
    holds: Holds
    here: str = ""
    why: str = ""


@dataclass(frozen=True)
class Panel:
    """One grid of experiments with what the paper printed for it."""

    name: str
    columns: Mapping[str, Settings]
    rows: Mapping[str, Settings]
    run: Settings = field(default_factory=dict)
    quick: Settings = field(default_factory=dict)
    published: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)
    derived: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # sums among the published, by row and place
    by: By = "mean"
    metric: Metric = "accuracy"
    figure: Figure = "dots"
    axis: str = ""
    text: str = ""
    baseline: str = ""  # the row that gains are counted from
    group: str = ""  # the panel that this one is a column of, if it is one
    seeds: int = 1  # that a page should have


@dataclass(frozen=True)
class Paper:
    """One published table or figure, or a set of experiments of ours in the same form."""

    name: str
    title: str
    paper: str
    panels: tuple[Panel, ...]
    run: Settings = field(default_factory=dict)
    quick: Settings = field(default_factory=dict)
    note: str = ""
    pretrain: Settings = field(default_factory=dict)
    presets: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    page: str = ""  # where the page lies, seen from the folder of results

    def cells(self, panel: Panel, quick: bool, more: Settings) -> dict[tuple[str, str], Experiment]:
        """Return the experiment of every row and column; `more` wins over all, but makes no two of them alike."""
        found = {}
        group = [each for each in self.panels if each.group and each.group == panel.group] or [panel]
        _refuse_leveling(f"{self.name}, {panel.name}", "rows", panel.rows.values(), more)
        _refuse_leveling(f"{self.name}, {panel.name}", "columns", [c for p in group for c in p.columns.values()], more)
        for row, of_row in panel.rows.items():
            for column, of_column in panel.columns.items():
                layers = [self.run, panel.run, of_column, of_row]
                if quick:
                    shortened = [of_column.get("quick", {}), of_row.get("quick", {})]
                    if False in shortened:
                        continue
                    layers += [self.quick, panel.quick, *shortened]
                values = {k: v for layer in layers for k, v in dotted(layer).items() if not k.startswith("quick")}
                try:
                    found[row, column] = single(_with_slots({**values, **more}))
                except UserError as error:
                    raise UserError(f"{self.name}, {panel.name}, {row}, {column}: {error}") from error
        return found


def _refuse_leveling(place: str, what: str, settings: Iterable[Settings], more: Settings) -> None:
    """Refuse a key in which rows or columns differ: their names would be false. Any run may be longer or shorter."""
    each = [dotted(own) for own in settings]
    for key in more:
        if key != "slots" and any(own.get(key) != each[0].get(key) for own in each):
            raise UserError(f"{place}: {key} is what {what} differ in: drop it")


def _with_slots(values: Settings) -> Settings:
    """Return the settings with the number of slots wherever "slots" stands."""
    wanted = [key for key, value in values.items() if value == "slots"]
    if wanted and "slots" not in values:
        raise UserError(f'{wanted[0]} = "slots" needs slots: give slots too')
    return {**values, **dict.fromkeys(wanted, values.get("slots"))}


def load_paper(name: str) -> Paper:
    """Read a published table or figure by name, or from a TOML file of the user's."""
    known = published()
    path = Path(name) if name.endswith(".toml") else known.get(name)
    if path is None:
        raise unknown("published table or figure", name, known)
    content = read_toml(path)
    _check_keys(path, "key", content, _KEYS)
    seeds = _seeds(path, content, 1)
    panels, others = content.get("panel", []), tuple(map(str, content.get("presets", ())))
    for other in others:
        if other not in known:
            raise unknown(f"preset in {path.name}", other, known)
    if not isinstance(panels, list) or not (panels or others):
        raise UserError(f"{path}: there is no panel: write [[panel]] and its columns and rows below")
    paper = Paper(
        path.stem,
        content.get("title", path.stem),
        content.get("paper", ""),
        tuple(part for panel in panels for part in _split(_panel(path, panel, seeds))),
        _table(path, content, "run"),
        _table(path, content, "quick"),
        content.get("note", ""),
        _table(path, content, "pretrain"),
        others,
        tuple(_claim(path, claim) for claim in content.get("claim", ())),
        content.get("page", f"{path.stem}.md"),
    )
    names = [panel.name for panel in paper.panels]
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two panels have the same name: give each a name of its own")
    for panel in paper.panels:
        paper.cells(panel, quick=False, more={})  # so that a wrong key is told before the first run
    return paper


_SUM = re.compile(r"\d+(\.\d+)?( [+-] \d+(\.\d+)?)+")
_PANEL_KEYS = {"name", "columns", "rows", "run", "quick", "published", "by", "metric", "figure", "axis", "text"}
_PANEL_KEYS |= {"baseline", "seeds"}
_KEYS = {"title", "paper", "run", "quick", "note", "panel", "pretrain", "presets", "seeds", "claim", "page"}


def _split(panel: Panel) -> tuple[Panel, ...]:
    """Return one panel per column where each column is a table by domain; all others as they are."""
    if panel.by != "domain" or len(panel.columns) == 1:
        return (panel,)
    parts = panel.columns.items()
    return tuple(replace(panel, name=f"{panel.name}, {c}", columns={c: v}, group=panel.name) for c, v in parts)


def _seeds(path: Path, content: Mapping[str, Any], usual: int) -> int:
    seeds = content.get("seeds", usual)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise UserError(f"{path}: seeds = {seeds} must be a whole number from 1 on")
    return seeds


def _claim(path: Path, content: Any) -> Claim:
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise UserError(f"{path}: claim must be a table of texts: write [[claim]] and its values below")
    _check_keys(path, "key of a claim", content, {"says", "holds", "here", "why"})
    if content.get("holds") not in get_args(Holds):
        raise unknown(f"holds of a claim in {path.name}", str(content.get("holds")), get_args(Holds))
    if not content.get("says"):
        raise UserError(f"{path}: a claim needs the paper's words: write says = ...")
    words = {key: " ".join(value.split()) for key, value in content.items()}
    return Claim(words["says"], content["holds"], words.get("here", ""), words.get("why", ""))


def _panel(path: Path, content: Any, seeds: int) -> Panel:
    if not isinstance(content, dict):
        raise UserError(f"{path}: panel must be a table: write [[panel]] and its values below")
    _check_keys(path, "key of a panel", content, _PANEL_KEYS)
    tables = {key: _table(path, content, key) for key in ("columns", "rows", "run", "quick", "published")}
    for key in ("columns", "rows"):
        if not tables[key] or not all(isinstance(value, dict) for value in tables[key].values()):
            raise UserError(f"{path}: a panel needs {key}: write [panel.{key}] with a table of settings for each")
    for key, choices in (("by", get_args(By)), ("figure", get_args(Figure)), ("metric", get_args(Metric))):
        if key in content and content[key] not in choices:
            raise unknown(f"{key} in {path.name}", str(content[key]), choices)
    by: By = content.get("by", "mean")
    if by != "mean" and len(tables["columns"]) != 1 and (by != "domain" or tables["published"]):
        raise UserError(f'{path}: by = "{by}" needs a panel with one column: split the panel')
    if by != "mean" and content.get("metric") in ("forgetting", "seconds"):
        raise UserError(f'{path}: metric = "{content["metric"]}" is of a whole run: drop by, or use another metric')
    if by == "position" and content.get("metric", "accuracy") != "accuracy":
        raise UserError(f'{path}: by = "position" shows accuracy only: drop metric, or use by = "domain"')
    if by == "class" and content.get("metric", "accuracy") not in ("accuracy", "mean_class_accuracy"):
        raise UserError(f'{path}: by = "class" shows accuracies: drop metric, or use metric = "mean_class_accuracy"')
    _check_keys(path, "row in published", tables["published"], set(tables["rows"]))
    if (baseline := str(content.get("baseline", ""))) and baseline not in tables["rows"]:
        raise unknown(f"baseline in {path.name}", baseline, tables["rows"])
    numbers = {row: _numbers(path, row, values) for row, values in tables["published"].items()}
    for row, values in numbers.items():
        if by == "mean" and len(values) != len(tables["columns"]):
            raise UserError(f"{path}: {row} has {len(values)} published numbers for {len(tables['columns'])} columns")
    for place in re.findall(r"\{([^{}]+)\}", str(content.get("text", ""))):
        row, _, column = (" ".join(part.split()) for part in place.partition("|"))
        if place not in ("sh", "th"):
            for kind, name in (("row", row), ("column", column)):
                if name not in tables[f"{kind}s"]:
                    raise unknown(f"{kind} in text of {path.name}", name, tables[f"{kind}s"])
    if len({len(values) for values in numbers.values()}) > 1:
        told = ", ".join(f"{row} {len(values)}" for row, values in numbers.items())
        raise UserError(
            f'{path}: rows have different numbers of published numbers ({told}): write "-" for one not known'
        )
    return Panel(
        name=str(content.get("name", "")),
        columns=tables["columns"],
        rows=tables["rows"],
        run=tables["run"],
        quick=tables["quick"],
        published=numbers,
        derived={row: _sums(values) for row, values in tables["published"].items()},
        by=by,
        metric=content.get("metric", "accuracy"),
        figure=content.get("figure", "dots"),
        axis=str(content.get("axis", "")),
        text=str(content.get("text", "")),
        baseline=baseline,
        seeds=_seeds(path, content, seeds),
    )


def _numbers(path: Path, row: str, values: Any) -> tuple[Number, ...]:
    def one(value: Any) -> Number:
        if value == "-":
            return nan, nan
        if isinstance(value, str) and _SUM.fullmatch(value):
            return round(sum(float(term) for term in value.replace("- ", "+ -").split("+")), 10), nan
        pair = value if isinstance(value, list) else [value, nan]
        if len(pair) != 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in pair):
            raise UserError(f'{path}: published number {value!r} of {row}: write 66.23, [66.23, 0.28], "-" or a sum')
        return float(pair[0]), float(pair[1])

    if not isinstance(values, list):
        raise UserError(f"{path}: published numbers of {row} must be a list, in the order of the columns")
    return tuple(one(value) for value in values)


def _sums(values: Any) -> dict[int, str]:
    return {k: value for k, value in enumerate(values) if isinstance(value, str) and value != "-"}


def _table(path: Path, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = content.get(key, {})
    if not isinstance(table, dict):
        raise UserError(f"{path}: {key} must be a table: write [{key}] and its values below")
    return table


def _check_keys(path: Path, kind: str, content: Mapping[str, Any], allowed: set[str]) -> None:
    for key in content:
        if key not in allowed:
            raise unknown(f"{kind} in {path.name}", key, allowed)
