"""`fedctta bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedctta.cli.console import err, out
from fedctta.files import require_writable


def bench(
    models: Annotated[str | None, typer.Option(help="For example resnet8,resnext29.")] = None,
    adapter_names: Annotated[str | None, typer.Option("--adapters", help="For example bn,tent.")] = None,
    aggregator_names: Annotated[str | None, typer.Option("--aggregators", help="For example fedavg,fedtsa.")] = None,
    clients: Annotated[str | None, typer.Option(help="For example 20,200,2000.")] = None,
    ways: Annotated[
        str | None,
        typer.Option(help="a: plain inference (a': not captured), b: ours, c: a loop, d: the published way."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images a client and round.")] = 10,
    size: Annotated[int | None, typer.Option(help="Side of pictures; usually 32.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to time, 3 or more; usually 9.")] = None,
    seconds: Annotated[float, typer.Option(help="Time for a cell; what would not fit is skipped.")] = 60.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16; the latter on a GPU.")] = "float32",
    storage: Annotated[str, typer.Option(help="float32 or bf16: how our clients' own weights are kept.")] = "float32",
    folder: Annotated[Path, typer.Option("--out", help="Folder for bench.md, .json and .png.")] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A small model, few clients and rounds.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="The whole grid on a CPU too.")] = False,
) -> None:
    """Time our rounds beside plain inference, a loop over models and the published way. Needs no data.

    Example: fedctta bench --models resnet8 --adapters bn,grad --clients 20,200
    """
    from fedctta.bench import make_plan, print_rows, refuse_impossible
    from fedctta.bench import run as run_bench
    from fedctta.bench import write as write_bench
    from fedctta.machine import keep_freed_memory

    plan = make_plan(
        models=models,
        adapters=adapter_names,
        aggregators=aggregator_names,
        clients=clients,
        ways=ways,
        batch=batch,
        size=size,
        rounds=rounds,
        seconds=seconds,
        device=device,
        precision=precision,
        storage=storage,
        quick=quick,
        everything=everything,
    )
    refuse_impossible(plan)
    require_writable(folder)
    keep_freed_memory()
    rows = []
    stopped = False
    with err.status("") as status:
        try:
            for row in run_bench(plan, lambda k, cell: status.update(f"[{k + 1}/{len(plan.cells)}] {cell.label}")):
                rows.append(row)
                write_bench(rows, plan, folder, picture=len(rows) == len(plan.cells))
        except KeyboardInterrupt:
            stopped = True
    page = write_bench(rows, plan, folder)
    print_rows(rows, plan, out)
    out.print(f"report: {page}", soft_wrap=True)
    if stopped:
        err.print("stopped; the cells above were finished")
        raise typer.Exit(130)
