"""The scoreboard: every table and figure of the papers, how it was reproduced, and which claims hold.

What can be counted is counted from the presets, the records and the pages; the verdicts are the presets' own claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedctta.data.public_sets import PUBLIC
from fedctta.errors import UserError
from fedctta.files import whole
from fedctta.models import model_for
from fedctta.papers.claims import count_verdicts, list_claims
from fedctta.papers.reproduction import Reproduction
from fedctta.papers.tables import Paper, load_paper
from fedctta.runs.build import choose_methods
from fedctta.runs.preset_files import read_toml
from fedctta.runs.settings import Experiment

Pages = Mapping[str, Reproduction]
BEGIN, END = "<!-- begin: fedctta reproduce pages -->", "<!-- end -->"
_HEAD = ("table or figure", "protocol", "seeds", "lacks", "records", "claims")


@dataclass(frozen=True)
class Item:
    """One table or figure: the preset that reproduces it, or why there is none."""

    name: str
    preset: str = ""
    none: str = ""


@dataclass(frozen=True)
class Standing:
    """How a page stands: its seeds, what it lacks of its preset, and whether its numbers are in the records."""

    seeds: str
    lacks: str
    records: bool


def read_catalogue() -> dict[str, list[Item]]:
    """Return the tables and figures of every paper, in order."""
    content = read_toml(Path(str(files("fedctta").joinpath("papers", "catalogue.toml"))))
    return {paper["name"]: [_item(each) for each in paper["items"]] for paper in content["paper"]}


def _item(content: Mapping[str, Any]) -> Item:
    return Item(content["item"], content.get("preset", ""), content.get("none", ""))


def write_scoreboard(folder: Path, pages: Pages) -> None:
    """Write the scoreboard into README.md of the folder, between its two marks."""
    place = folder / "README.md"
    text = place.read_text(encoding="utf-8") if place.is_file() else f"# Results\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{place} has no place for the scoreboard: add the lines {BEGIN} and {END}")
    with whole(place) as part:
        content = f"{before}{BEGIN}\n\n{make_scoreboard(folder, pages)}\n{END}{after}"
        part.write_text(content, encoding="utf-8", newline="\n")


def make_scoreboard(folder: Path, pages: Pages) -> str:
    """Return the scoreboard of the pages in a folder, in Markdown."""
    parts = []
    for title, items in read_catalogue().items():
        papers = {item.preset: load_paper(item.preset) for item in items if item.preset}
        parts += [f"## {title}", _table(folder, items, papers, pages)]
        for item in items:
            if item.preset and (claims := papers[item.preset].claims):
                parts += [f"**{item.name}**", list_claims(claims)]
    return "\n\n".join(parts) + "\n"


def _table(folder: Path, items: Iterable[Item], papers: Mapping[str, Paper], pages: Pages) -> str:
    lines = ["| " + " | ".join(_HEAD) + " |", "| " + " | ".join(":--" for _ in _HEAD) + " |"]
    for item in items:
        if not item.preset:
            lines.append(f"| {item.name} | {item.none} | - | - | - | - |")
            continue
        paper = papers[item.preset]
        standing = find_standing(folder, paper, pages.get(paper.name))
        name = f"[{item.name}]({paper.page})" if standing is not None else item.name
        told = ("-", "no page yet", "no") if standing is None else _told(standing)
        lines.append(f"| {name} | {describe_protocol(paper)} | {' | '.join(told)} | {count_verdicts(paper.claims)} |")
    return "\n".join(lines)


def _told(standing: Standing) -> tuple[str, str, str]:
    return standing.seeds, standing.lacks or "nothing", "yes" if standing.records else "no"


def find_standing(folder: Path, paper: Paper, page: Reproduction | None) -> Standing | None:
    """Return how the page of a preset stands: by its records, or, if it has none, by what it says itself."""
    if page is not None:
        seeds = [len(runs) for table in page.tables for runs in table.runs.values() if runs]
        return Standing(_range(seeds), _lacks(page), True)
    place = folder / paper.page
    return _read_page(place.read_text(encoding="utf-8"), paper) if place.is_file() else None


def _lacks(page: Reproduction) -> str:
    return "; ".join([*(["the whole protocol (--quick)"] if page.quick else []), *page.missing])


def _read_page(text: str, paper: Paper) -> Standing:
    """Return how a page stands whose runs are gone: its first line, its command and its facts say so."""
    command = next(iter(re.findall(r"Command: `([^`]*)`", text)), "")
    counted = re.search(r"seeds (\d(?:, \d)*), [\d,]+ seconds", text)
    seeds = len(counted[1].split(",")) if counted else int(next(iter(re.findall(r"--seeds (\d+)", command)), 1))
    if told := re.search(r"^\*\*Missing: (.*?)\.\*\*", text, re.MULTILINE):
        return Standing(str(seeds), re.sub(r"\(--quick: [^()]*\)", "(--quick)", told[1]), False)
    shown = re.findall(r'--panel "([^"]*)"', command)
    lost = [panel.name for panel in paper.panels if shown and not {panel.name, panel.group} & set(shown)]
    wanted = max((panel.seeds for panel in paper.panels), default=1)
    lacks = ["the whole protocol (--quick)"] if "--quick" in command else []
    lacks += [f"{', '.join(lost)} (no runs)"] if lost else []
    lacks += [f"seeds ({seeds} of {wanted})"] if seeds < wanted else []
    return Standing(str(seeds), "; ".join(lacks), False)


def describe_protocol(paper: Paper) -> str:
    """Say on what a preset runs: data, networks, clients, batches and how many of them per domain."""
    cells = [cell for panel in paper.panels for cell in paper.cells(panel, False, {}).values()]
    if not cells:
        return "-"
    on = dict.fromkeys(f"{cell.dataset} ({_model(cell)})" for cell in cells)
    clients = _range([choose_methods(cell).count_clients(cell) for cell in cells])
    batches = _either(sorted({cell.batch for cell in cells}))
    slots = _either(sorted({cell.slots or 0 for cell in cells}))
    each = "" if slots == "0" else f", {slots} per domain"
    return f"{', '.join(on)}; {clients} client{'' if clients == '1' else 's'}, batches of {batches}{each}"


def _model(cell: Experiment) -> str:
    public = PUBLIC.get(cell.dataset)
    return model_for(cell.dataset, cell.model, public is not None and public.dense)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _either(values: Sequence[int]) -> str:
    return " or ".join(map(str, values))
