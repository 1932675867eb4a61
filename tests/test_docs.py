"""The index of the documentation names every page, links lead somewhere, and the map names code that exists."""

from __future__ import annotations

import importlib
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
INDEX, MAP = DOCS / "README.md", DOCS / "architecture.md"
PAGES = sorted(DOCS.rglob("*.md"))
GLOSSARY = (
    "client",
    "adapter",
    "aggregator",
    "upload",
    "collaboration",
    "stream",
    "domain",
    "slot",
    "round",
    "own and shared tensors",
    "probe",
    "signal",
    "lifting",
    "tally",
    "gate",
    "conductor",
    "roster",
)

OLD_WORDS = ("as ever", "at home", "but for", "by way of", "on its way", "on their way", "so many", "want of")


def links(text: str) -> list[tuple[str, str]]:
    """Return the relative links of a Markdown text as (file, heading): `file` is empty within the page."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    found = re.findall(r"\]\(([^()\s]+)\)", text)
    return [
        (unquote(target), heading) for target, _, heading in (link.partition("#") for link in found if ":" not in link)
    ]


def anchors(text: str) -> set[str]:
    """Return the anchors that a page's headings get: lower case, spaces as hyphens, other signs dropped."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    lost = []
    for file, heading in links(page.read_text(encoding="utf-8")):
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            lost.append(file)
        elif heading and heading not in anchors(target.read_text(encoding="utf-8")):
            lost.append(f"{file}#{heading}")
    return lost


def names(text: str) -> list[str]:
    """Return the code names of the map, written `module: Name.attribute` or `module: function`."""
    return re.findall(r"`([a-z_.]+: [A-Za-z_.]+)`", text)


def resolve(name: str) -> object:
    """Return what a name of the map stands for."""
    module, _, path = name.partition(": ")
    found: object = importlib.import_module(f"fedctta.{module}")
    for part in path.split("."):
        found = getattr(found, part)
    return found


def test_the_index_names_every_page_once():
    listed = [(INDEX.parent / file).resolve() for file, _ in links(INDEX.read_text(encoding="utf-8"))]
    pages = [file for file in listed if file.suffix == ".md" and DOCS in file.parents]
    assert sorted(pages) == sorted(page.resolve() for page in PAGES if page != INDEX)


def test_every_page_of_the_index_has_a_sentence():
    lines = re.findall(r"^- \[[^\]]+\]\([^)]+\)(.*(?:\n  .*)*)", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) == len(PAGES) - 1
    assert [line for line in lines if not re.fullmatch(r": .{20,}\.", " ".join(line.split()))] == []


def test_the_readme_leads_to_the_index_and_the_map():
    assert {"docs/README.md", "docs/architecture.md"} <= {
        file for file, _ in links((ROOT / "README.md").read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *PAGES], ids=lambda page: str(page.relative_to(ROOT)).removesuffix(".md")
)
def test_relative_links_lead_somewhere(page):
    assert broken(page) == []


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "there.md").write_text("# A heading, with signs\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](gone.md) [c](there.md#a-heading-with-signs) [d](there.md#none) [e](https://gone.invalid)\n"
        "[f](#own)\n```\n[g](gone.md)\n```\n",
        encoding="utf-8",
    )
    assert broken(page) == ["gone.md", "there.md#none", "#own"]


def test_the_map_names_code_that_exists():
    named = names(MAP.read_text(encoding="utf-8"))
    if find_spec("flwr") is None:
        named = [name for name in named if not name.startswith("fleet.")]
    assert len(named) > 20
    for name in named:
        resolve(name)
    with pytest.raises(AttributeError):
        resolve("engine.rounds: Federation.pause")


def test_the_map_has_all_layers_in_their_order():
    layers = runpy.run_path(str(Path(__file__).with_name("test_layers.py")))["LAYERS"]
    (block,) = re.findall(r"```text layers\n(.*?)```", MAP.read_text(encoding="utf-8"), re.DOTALL)
    assert [set(layer.split()) for layer in block.split("<")] == [set(layer) for layer in layers]


def test_the_glossary_explains_the_words():
    _, _, text = MAP.read_text(encoding="utf-8").partition("## Glossary")
    assert set(GLOSSARY) <= set(re.findall(r"^\| ([^|]+?) \|", text, re.MULTILINE))


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)).removesuffix(".md")
)
def test_pages_use_plain_words(page):
    text = " ".join(page.read_text(encoding="utf-8").lower().split())
    assert [word for word in OLD_WORDS if re.search(rf"\b{word}\b", text)] == []
