"""A reproduction as files: a page that needs nothing else, a Markdown file for docs, the numbers, the figures."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path

from fedctta.data.cache import cache_dir
from fedctta.files import whole
from fedctta.report.comparison import DIFFERENCE, MEASURES, PAPER, Comparison, csv_of
from fedctta.report.figures import save_png
from fedctta.report.panels import is_drawn, panel_figure
from fedctta.results.digests import Digest

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
{style}
main {{ max-width: 78rem; }}
section > p, header > p, ul {{ max-width: 46rem; }}
section > p:has(img) {{ max-width: none; }}
img {{ max-width: 100%; height: auto; background: white; }}
tr.{paper} > *, tr.{difference} > * {{ color: var(--quiet); border-top: 0; padding-top: 0; }}
</style>
</head>
<body>
<main>
<header><h1>{title}</h1>
{lead}
</header>
{body}
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Story:
    """What is told about a reproduction beside its tables."""

    name: str
    title: str
    paper: str
    note: str
    command: str
    quick: str = ""  # what --quick changed, if it was given
    missing: tuple[str, ...] = ()  # what else the page lacks
    claims: str = ""  # what of the paper holds here, in Markdown
    many: bool = False  # whether there are more panels than are shown


def write_reproduction(story: Story, tables: Sequence[Comparison], folder: Path) -> Path:
    """Write report.html, NAME.md, NAME.csv and one PNG a panel; return the page's path."""
    pictures = draw(story, tables, folder)
    _write(folder / f"{story.name}.csv", csv_of(tables))
    _write(folder / f"{story.name}.md", markdown(story, tables, name_pictures(story, tables)))
    page = folder / "report.html"
    _write(page, html(story, tables, {name: p.read_bytes() for name, p in pictures.items()}))
    return page


def name_pictures(story: Story, tables: Sequence[Comparison]) -> dict[str, str]:
    """Return the file names of the panels' pictures, of those that have one."""
    many = story.many or len(tables) > 1
    return {t.name: f"{story.name}{f'-{slug(t.name)}' if many else ''}.png" for t in tables if is_drawn(t)}


def draw(story: Story, tables: Sequence[Comparison], folder: Path) -> dict[str, Path]:
    """Write the pictures and return their paths by panel."""
    pictures = {name: folder / file for name, file in name_pictures(story, tables).items()}
    for table in tables:
        if table.name in pictures and (figure := panel_figure(table)) is not None:
            with whole(pictures[table.name]) as part:
                save_png(figure, part)
    return pictures


def markdown(story: Story, tables: Sequence[Comparison], pictures: dict[str, str]) -> str:
    """Return the Markdown page; pictures are file names by panel."""
    parts = [f"# {story.title}", *tell_missing(story, tables), *facts(story, tables)]
    for table in tables:
        parts += [f"## {table.name}"] if table.name else []
        parts += [table.filled()] if table.text else []
        parts.append(table.markdown().strip())
        parts += table.reasons()
        parts += [" ".join(told)] if (told := table.warnings()) else []
        if table.name in pictures:
            parts.append(f"![{table.name or story.title}]({pictures[table.name]})")
    parts += ["## Claims", story.claims.strip()] if story.claims else []
    parts += ["## Notes"] if story.note and story.claims else []
    parts += [story.note.strip()] if story.note else []
    return "\n\n".join(parts) + "\n"


def tell_missing(story: Story, tables: Sequence[Comparison]) -> list[str]:
    """Say in one line what the page lacks of the whole protocol: nothing, if it lacks nothing."""
    short = [f"the whole protocol (--quick: {story.quick})"] if story.quick else []
    if not (lacks := [*short, *story.missing]):
        return []
    entries = [entry for table in tables for line in table.lines for entry in line.entries]
    printed = short and any(isfinite(entry.paper) for entry in entries)
    return [f"**Missing: {'; '.join(lacks)}.**" + (" Printed numbers are of the whole protocol." if printed else "")]


def tell_dates(runs: Sequence[Digest]) -> str:
    """Say when runs were made: on one day, or from the first to the last.

    Runs of earlier versions do not know it; they are shown today.
    """
    days = sorted({str(run.origin.get("made", date.today().isoformat()))[:10] for run in runs})
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"


def facts(story: Story, tables: Sequence[Comparison]) -> list[str]:
    """Say what was run, where, when, and how long it took."""
    runs = list({id(run): run for table in tables for found in table.runs.values() for run in found}.values())
    lines = [f"Published: {story.paper}."] if story.paper else []
    if not runs:
        return [*lines, f"Command: `{story.command}`. Nothing could be run."]

    def all_of(key: str) -> str:
        return ", ".join(dict.fromkeys(str(run.settings[key]) for run in runs if key in run.settings))

    rounds = ", ".join(map(str, sorted({run.rounds for run in runs})))
    lines.append(
        f"Command: `{story.command}`. Made on {tell_dates(runs)} on {all_of('hardware')} with torch"
        f" {all_of('torch')}: {len(runs)} runs of {rounds} rounds, seeds {all_of('seed')},"
        f" {sum(run.seconds for run in runs):,.0f} seconds in all."
    )
    entries = [entry for table in tables for line in table.lines for entry in line.entries]
    notes = Counter(str(note) for run in runs for note in run.settings.get("notes", ()))
    if any(table.base is not None or table.metric == "gain" for table in tables):  # many streams: records tell of each
        notes = Counter({note: count for note, count in notes.items() if count == len(runs)})
        lines += [f"Source models: {'; '.join(models)}."] if (models := describe_sources(runs)) else []
    lines += [words] if (words := legend([table for table in tables if table.across == "mean"])) else []
    if any(entry.derived for entry in entries):
        lines.append("Where a sum stands for the paper's number, it is not printed but follows from numbers that are.")
    of = {note: "" if count == len(runs) else f" ({count} of {len(runs)} runs)" for note, count in notes.items()}
    return [*lines, *(note.replace(str(cache_dir()), "CACHE") + some for note, some in of.items())]


def describe_sources(runs: Sequence[Digest]) -> list[str]:
    """Say of every trained file that runs started from how long it was trained, and how good it is at its source."""
    cards = {str(c["file"]): c for run in runs if (c := run.settings.get("source", {})).get("weights") == "cache"}
    return [
        f"{name.removesuffix('.safetensors')} ({card.get('epochs')} epochs, {100 * card['accuracy']:.2f} %)"
        for name, card in cards.items()
    ]


def legend(tables: Sequence[Comparison]) -> str:
    """Say what the numbers of the tables with runs are; of forgetting and seconds their panels' texts tell."""
    tables = [table for table in tables if any(entry.ours for line in table.lines for entry in line.entries)]
    if not tables:
        return ""
    shares = dict.fromkeys(MEASURES[table.metric] for table in tables)
    percent = [name.removesuffix(" (%)") for name in shares if name.endswith("(%)")]
    parts = [f"{' and '.join(percent)} in percent"] if percent else []
    beside = {t.metric for t in tables for line in t.lines for entry in line.entries if isfinite(entry.paper)}
    if beside:
        parts.append("in brackets ours less the paper's" + ("" if "seconds" in beside else ", in points"))
    words = "; ".join([*parts, "bold is the best of a column"]) + "."
    return words if words.startswith("mIoU") else words[0].upper() + words[1:]


def html(story: Story, tables: Sequence[Comparison], pictures: dict[str, bytes]) -> str:
    """Return the page; pictures are PNG files by panel, written into it."""
    body = []
    for table in tables:
        body.append(f"<section><h2>{escape(table.name)}</h2>{paragraphs(table.filled())}")
        body.append(f'<div class="wide">{_table(table)}</div>')
        body += [f'<p class="note">{escape(sentence)}</p>' for sentence in table.reasons()]
        body += [f'<p class="note harm">{escape(sentence)}</p>' for sentence in table.warnings()]
        if table.name in pictures:
            data = base64.b64encode(pictures[table.name]).decode("ascii")
            body.append(f'<p><img alt="{escape(table.name or story.title)}" src="data:image/png;base64,{data}"></p>')
        body.append("</section>")
    if story.claims:
        body.append(f"<h2>Claims</h2>{paragraphs(story.claims)}<h2>Notes</h2>")
    body.append(paragraphs(story.note))
    style = (files("fedctta.report") / "page" / "page.css").read_text(encoding="utf-8")
    lead = "".join(paragraphs(line) for line in [*tell_missing(story, tables), *facts(story, tables)])
    return _PAGE.format(
        title=escape(story.title), style=style, lead=lead, body="\n".join(body), paper=PAPER, difference=DIFFERENCE
    )


def paragraphs(text: str) -> str:
    """Turn the little Markdown of texts (paragraphs, lists, `code`, **bold**, *emphasis*) into HTML.

    Links are of the documentation, which a page does not lie beside: their words stay.
    """
    out = []
    for part in filter(None, (p.strip() for p in text.split("\n\n"))):
        if part.startswith("- "):
            items = re.split(r"\n- ", part.removeprefix("- "))
            out.append(f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>")
        else:
            out.append(f"<p>{_inline(part)}</p>")
    return "".join(out)


def _inline(text: str) -> str:
    line = re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", escape(" ".join(text.split())))
    for mark, tag in ((r"`([^`]+)`", "code"), (r"\*\*(.+?)\*\*", "strong"), (r"\*(.+?)\*", "em")):
        line = re.sub(mark, rf"<{tag}>\1</{tag}>", line)
    return line


def _table(table: Comparison) -> str:
    head, body = table.grid("<strong>{}</strong>")
    top = "".join(f'<th scope="col"{"" if k == 0 else _N}>{escape(name)}</th>' for k, name in enumerate(head))
    lines = []
    for line in body:
        cells = "".join(f"<td{_N}>{cell}</td>" for cell in line[1:])
        kind = f' class="{line[0]}"' if line[0] in (PAPER, DIFFERENCE) else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(line[0])}</th>{cells}</tr>')
    return f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


_N = ' class="n"'


def slug(name: str) -> str:
    """Make a file name of a panel's name.

    >>> slug("CIFAR-10-C, SH")
    'cifar-10-c-sh'
    """
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def _write(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
