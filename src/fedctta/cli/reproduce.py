"""`fedctta reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedctta.cli import pool as whole_pool
from fedctta.cli.console import err, out, print_list
from fedctta.cli.refusal import refuse_options
from fedctta.errors import UserError
from fedctta.runs.preset_files import published, titles


def reproduce(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A published table or figure, or all, status, pack, pages; without it, a list.")
    ] = None,
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE ...", show_default=False)] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Seeds 0 to N - 1; else one, and for all and status as many as a preset asks for."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer slots; the table says so.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel, or these, for example CIFAR-10-C.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="With all and status: only runs with these values, for example batch=10,50 or seed!=0."),
    ] = None,
    shard: Annotated[str, typer.Option(help="Run only a part of the cells, for example 2/6.")] = "1/1",
    gather: Annotated[
        bool, typer.Option("--gather", help="Run nothing: compare what is kept so far, seeds as there are.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Cells played at once, each in a process of its own.")] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing: say how many runs there are, and what must be trained.")
    ] = False,
    pool: Annotated[
        Path | None, typer.Option(help="Folder of finished runs, shared by all pages; else that of --out.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for reports.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run a published table or figure and show our numbers beside the paper's. Finished cells are kept.

    Example: fedctta reproduce fedctta-table1 --quick --panel CIFAR-10-C

    Four words stand for all of them: all plays every preset, or those named behind it, into one pool, status says what
    is missing there and how long it will take, pack puts its runs into one file of records, and pages writes all result
    pages from that file.
    """
    whole_pool.refuse_useless(context, name)
    if name is None:
        print_list("published tables and figures", [(key, title, "") for key, title in titles(published()).items()])
        return
    from fedctta.papers.pool import require_folder, require_pool

    place = pool or folder
    if pool is not None:
        (require_pool if gather or name == "status" else require_folder)(pool)
    if name in ("all", "status"):
        from fedctta.papers.campaign import plan_all

        campaign = plan_all(seeds, quick, shard, device, words or (), panel or (), only or ())
        if name == "status":
            return whole_pool.show(place, campaign, as_json)
        return whole_pool.play(place, campaign, jobs, quiet)
    if name in ("pack", "pages"):
        return (whole_pool.pack if name == "pack" else whole_pool.write_pages)(place, folder)
    from fedctta.machine import keep_freed_memory
    from fedctta.papers.reproduction import foresee
    from fedctta.papers.reproduction import reproduce as run_reproduction
    from fedctta.report.comparison import print_comparison
    from fedctta.runs.settings import parse_single

    values = parse_single(words or [], "a reproduction")
    refuse_options(values, run_reproduction, "device", "out")
    values["device"] = device
    many = 1 if seeds is None else seeds
    if dry_run and gather:
        raise UserError("--dry-run and --gather both run nothing: give one of them")
    if dry_run:
        for part in foresee(name, seeds=many, quick=quick, panels=panel or (), shard=shard, pool=place, **values):
            for line in part.told():
                out.print(line, soft_wrap=True, highlight=False)
        return
    keep_freed_memory()
    try:
        result = run_reproduction(
            name,
            seeds=many,
            quick=quick,
            panels=panel or (),
            shard=shard,
            gather=gather,
            jobs=jobs,
            pool=place,
            progress=not quiet,
            console=err,
            **values,
        )
    except KeyboardInterrupt:
        err.print("stopped; the same command continues where it was")
        raise typer.Exit(130) from None
    if shard == "1/1":
        page = result.write(folder / result.paper.name)
        print_comparison(result.tables, out)
        out.print(f"report: {page}", soft_wrap=True)
    else:
        out.print(f"shard {shard} is done; the command without --shard gathers the table")
    if result.failed:
        raise UserError(f"these cells failed, for the reasons above: {'; '.join(result.failed)}")
