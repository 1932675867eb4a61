"""The words of `fedctta reproduce` that stand for all presets: all, status, pack and pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedctta.cli.console import err, out
from fedctta.errors import UserError

if TYPE_CHECKING:
    from fedctta.papers.campaign import Campaign

_ALWAYS = {"name"}
USED = {  # by word, the parameters of the command that have an effect
    "all": {"words", "panel", "only", "seeds", "quick", "device", "shard", "jobs", "pool", "quiet"},
    "status": {"words", "panel", "only", "seeds", "quick", "pool", "as_json"},
    "pack": {"pool", "folder"},
    "pages": {"pool", "folder"},
}
_INSTEAD = {
    "gather": "`fedctta reproduce pages` makes all pages of what is kept",
    "dry_run": "`fedctta reproduce status` says what is missing",
}


def refuse_useless(context: typer.Context, name: str | None) -> None:
    """Refuse options that were given and have no effect with this word, or without any."""
    given = {key for key in context.params if _was_given(context, key)}
    if name is None:
        if given:
            raise UserError("name a table or figure for these options: `fedctta reproduce` alone lists them")
        return
    if useless := given - USED[name] - _ALWAYS if name in USED else given & {"as_json", "only"}:
        key = min(useless)
        option = {"as_json": "--json", "folder": "--out", "words": "a word"}.get(key, f"--{key.replace('_', '-')}")
        raise UserError(f"{option} has no effect with {name}: {_INSTEAD.get(key, 'leave it out')}")
    if name in ("pack", "pages") and "folder" not in given:
        raise UserError(f"{name} needs the folder of results: add for example --out docs/results")


def _was_given(context: typer.Context, key: str) -> bool:
    source = context.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def play(pool: Path, campaign: Campaign, jobs: int, quiet: bool) -> None:
    """Play every run of a campaign that the pool does not have."""
    from fedctta.machine import keep_freed_memory
    from fedctta.papers.campaign import play_all

    keep_freed_memory()
    try:
        outcome = play_all(campaign, pool, jobs, err, progress=not quiet)
    except KeyboardInterrupt:
        err.print("stopped; the same command continues where it was")
        raise typer.Exit(130) from None
    out.print(f"{outcome.runs:,} runs: {outcome.kept:,} were there, {outcome.played:,} were played", highlight=False)
    for reason, count in outcome.reasons.most_common():
        out.print(f"{count:,} not played: {reason}", soft_wrap=True, highlight=False, markup=False)
    if outcome.failed:
        raise UserError(f"{outcome.failed:,} runs failed: their reasons are above")


def show(pool: Path, campaign: Campaign, as_json: bool) -> None:
    """Print what of every page is done and missing."""
    from fedctta.papers.pool import read_pool
    from fedctta.papers.status import find_status, show_status
    from fedctta.report.text import roomy

    pages = find_status(campaign, read_pool(pool))
    if as_json:
        typer.echo(json.dumps([page.plain() for page in pages], indent=1))
        return
    console = roomy(out)
    console.print(show_status(pages))
    console.print(
        "minutes: one after another, by the seconds of finished runs that are alike; runs that share a GPU take longer"
        " each, and less together",
        style="dim",
        soft_wrap=True,
    )


def pack(pool: Path, folder: Path) -> None:
    """Add the runs of the pool to the file of records in the folder."""
    from fedctta.papers.pages import find_drawn
    from fedctta.papers.pool import pack as pack_pool
    from fedctta.papers.pool import require_pool
    from fedctta.results.packed import NAME

    require_pool(pool)
    done = pack_pool(pool, folder / NAME, find_drawn())
    out.print(f"{folder / NAME}: {done.rows:,} runs, {done.added:,} new, {done.replaced:,} replaced", soft_wrap=True)
    if done.stand_ins:
        out.print(
            f"{done.stand_ins:,} runs left out: they saw stand-in pictures of frost, others of their data set the true"
            " ones; get these with `fedctta data fetch`, and play the runs into a new pool",
            soft_wrap=True,
            highlight=False,
        )
    if done.nameless:
        out.print(f"{done.nameless:,} files of earlier versions do not say what they are of: left out", soft_wrap=True)


def write_pages(pool: Path, folder: Path) -> None:
    """Pack the pool, and write every page that the file of records has runs of, and the scoreboard."""
    from fedctta.papers.pages import make_pages, write_page
    from fedctta.papers.scoreboard import write_scoreboard
    from fedctta.results.packed import NAME, read_packed

    pack(pool, folder)
    made = make_pages(read_packed(folder / NAME))
    write_scoreboard(folder, made)  # first, because it may be refused
    written = [name for name, page in made.items() if write_page(folder, page)]
    out.print(f"{len(written)} pages written: {', '.join(written) or 'none'}", soft_wrap=True, highlight=False)
    if left := [name for name in made if name not in written]:
        told = "of the whole protocol, and there are runs of --quick only; delete a page to have the shorter one"
        out.print(f"left as they are: {', '.join(left)}: {told}", soft_wrap=True, highlight=False)
