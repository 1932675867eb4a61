"""The `fedctta` command: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedctta import __version__
from fedctta.adapters import adapters
from fedctta.aggregators import aggregators
from fedctta.bench import make_plan, print_rows
from fedctta.bench import run as run_bench
from fedctta.bench import write as write_bench
from fedctta.data import catalogue
from fedctta.errors import UserError, reason
from fedctta.experiment import run as run_experiments
from fedctta.files import exit_when_terminated, require_writable
from fedctta.fleet.cli import fleet_app
from fedctta.fleet.device_cli import device
from fedctta.method_training import LEARNT, learn
from fedctta.models import ARCHITECTURES
from fedctta.models.zoo import variant
from fedctta.papers import load_paper, published
from fedctta.pretraining import pretrain as pretrain_model
from fedctta.registry import Registry, defaults
from fedctta.report import print_table
from fedctta.report.comparison import print_comparison
from fedctta.reproduction import reproduce as run_reproduction
from fedctta.sampling import samplers
from fedctta.settings import load_preset, parse_single, parse_words, presets
from fedctta.streams import schedules

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated continual test-time adaptation: run, compare and report client and server methods.",
)
data_app = typer.Typer(invoke_without_command=True, help="List, fetch and check data sets.")
app.add_typer(data_app, name="data")
app.add_typer(fleet_app, name="fleet")
app.command("device")(device)
out = Console()
err = Console(stderr=True)

Words = Annotated[list[str] | None, typer.Argument(metavar="[PRESET] key=value ...", show_default=False)]


@app.command()
def run(
    words: Words = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for report and runs.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished runs and continue an interrupted one.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Runs played at once, each in a process of its own.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run experiments. Several values under one key (seed=0,1,2) are all run, on the same streams.

    Example: fedctta run dataset=shapes-c aggregator=local,fedavg,fedctta,oracle seed=0,1,2
    """
    words = list(words or [])
    preset = words.pop(0) if words and "=" not in words[0] else None
    values = parse_words(words)
    _refuse_options(values, run_experiments)
    if json_file is not None:
        require_writable(json_file.parent)
    name = Path(preset).stem if preset else "-".join(values.get("dataset", ["cifar10-c"]))
    folder = folder or Path("runs") / name
    try:
        result = run_experiments(
            preset, out=folder, resume=resume, jobs=jobs, progress=not quiet, console=err, **values
        )
    except KeyboardInterrupt:
        err.print("stopped; the same command with --resume continues where it was")
        raise typer.Exit(130) from None
    if json_file is not None:
        result.write_json(json_file)
    page = result.write_report(folder)
    print_table(result.table(), out)
    for note in dict.fromkeys(note for record in result for note in record.settings["notes"]):
        out.print(f"note: {note}", style="dim", soft_wrap=True)
    out.print(f"report: {page}", soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A published table or figure; without it, all are listed.")] = None,
    words: Annotated[list[str] | None, typer.Argument(metavar="key=value ...", show_default=False)] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N - 1; the papers use 5.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer slots; the table says so.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel, or these, for example CIFAR-10-C.")] = None,
    shard: Annotated[str, typer.Option(help="Run only a part of the cells, for example 2/6.")] = "1/1",
    gather: Annotated[
        bool, typer.Option("--gather", help="Run nothing: compare what is kept so far, seeds as there are.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Cells played at once, each in a process of its own.")] = 1,
    folder: Annotated[Path, typer.Option("--out", help="Folder for finished cells and reports.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run a published table or figure and show our numbers beside the paper's. Finished cells are kept.

    Example: fedctta reproduce fedctta-table1 --quick --panel CIFAR-10-C
    """
    if name is None:
        _list("published tables and figures", [(key, load_paper(key).title, "") for key in published()])
        return
    values = parse_single(words or [], "a reproduction")
    _refuse_options(values, run_reproduction, "device")
    values["device"] = device
    try:
        result = run_reproduction(
            name,
            seeds=seeds,
            quick=quick,
            panels=panel or (),
            shard=shard,
            gather=gather,
            jobs=jobs,
            out=folder,
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
        raise UserError(f"{len(result.failed)} cells failed ({'; '.join(result.failed)}): their reasons are above")


def _refuse_options(keys: Iterable[str], function: Callable[..., Any], *options: str) -> None:
    """Refuse keys that the function or the command takes by that name itself."""
    for key in keys:
        if key in options or key in signature(function).parameters:
            raise UserError(f"{key}= is no setting: for an option write --{key}, as --help lists them")


@app.command()
def bench(
    models: Annotated[str | None, typer.Option(help="For example resnet8,resnext29.")] = None,
    adapter_names: Annotated[str | None, typer.Option("--adapters", help="Of bn,grad,tent,bbn.")] = None,
    aggregator_names: Annotated[str | None, typer.Option("--aggregators", help="Of fedavg,fedtsa,fedctta.")] = None,
    clients: Annotated[str | None, typer.Option(help="For example 20,200,2000.")] = None,
    ways: Annotated[
        str, typer.Option(help="a: plain inference, b: ours, c: a loop, d: the published way.")
    ] = "a,b,c,d",
    batch: Annotated[int, typer.Option(help="Images a client and round.")] = 10,
    rounds: Annotated[int | None, typer.Option(help="Rounds to time, 3 or more; usually 9.")] = None,
    seconds: Annotated[float, typer.Option(help="Time for a cell; what would not fit is skipped.")] = 60.0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="float32 or tf32.")] = "float32",
    folder: Annotated[Path, typer.Option("--out", help="Folder for bench.md, .json and .png.")] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="A small model, few clients and rounds.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="The whole grid on a CPU too.")] = False,
) -> None:
    """Time our rounds beside plain inference, a loop over models and the published way. Needs no data.

    Example: fedctta bench --models resnet8 --adapters bn,grad --clients 20,200
    """
    plan = make_plan(
        models=models,
        adapters=adapter_names,
        aggregators=aggregator_names,
        clients=clients,
        ways=ways,
        batch=batch,
        rounds=rounds,
        seconds=seconds,
        device=device,
        precision=precision,
        quick=quick,
        everything=everything,
    )
    require_writable(folder)
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


@app.command()
def methods() -> None:
    """List adapters, aggregators, streams, models and presets with one line each."""
    bounds = {name for name, cls in aggregators.classes().items() if cls.upper_bound}
    _list("adapters (client side)", _described(adapters))
    _list("aggregators (server side)", [row for row in _described(aggregators) if row[0] not in bounds])
    _list(
        "upper bounds (told the true domains; not methods)",
        [r for r in _described(aggregators) if r[0] in bounds],
    )
    _list("streams", _described(schedules))
    _list("samples (which images a client sees)", _described(samplers))
    _list("models", [(n, a.description, f"{a.parameters:,} parameters") for n, a in ARCHITECTURES.items()])
    _list("presets", [(name, load_preset(name).title, "") for name in presets()])
    _list("published tables and figures (fedctta reproduce)", [(n, load_paper(n).title, "") for n in published()])


def _described(registry: Registry[Any]) -> list[tuple[str, str, str]]:
    return [
        (name, (cls.__doc__ or "").splitlines()[0], "  ".join(f"{k}={v}" for k, v in defaults(cls).items()))
        for name, cls in registry.classes().items()
    ]


def _list(title: str, rows: list[tuple[str, str, str]]) -> None:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    for style in ("bold", "", "dim"):
        table.add_column(style=style)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print()


@app.command()
def pretrain(
    words: Annotated[list[str] | None, typer.Argument(metavar="key=value ...", show_default=False)] = None,
) -> None:
    """Train a source model, or what a method learns at the source (method=atp, method=fedthe).

    Example: fedctta pretrain model=resnet8 dataset=cifar10 epochs=60 seed=0
    """
    values = parse_single(words or [], "a training")
    unit = "epoch" if "method" not in values and values.get("federation", "none") == "none" else "round"
    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=None, loss="")

        def show(done: int, total: int, loss: float) -> None:
            bar.update(task, completed=done, total=total, loss=f"loss {loss:.4f}")

        path, card = (learn if "method" in values else pretrain_model)(values, show)
    if "method" in values:
        name, losses = card["method"], card["losses"]
        place = f"{name}.{LEARNT[name]}={path if 'out' in values else 'auto'}"
        out.print(f"{name} for {card['model']}: loss {losses[0]:.4f} in the first round, {losses[-1]:.4f} in the last")
        out.print(f"{LEARNT[name]}: {path} (use them with adapter={name} {place})", soft_wrap=True)
        return
    corrupted = card["accuracy_corrupted"]
    if "miou" in card:
        by_domain = ", ".join(f"{name} {100 * value:.2f}" for name, value in card["miou_by_corruption"].items())
        out.print(f"mIoU at the source {100 * card['miou']:.2f} %; by domain {by_domain}", soft_wrap=True)
    else:
        out.print(f"clean accuracy {100 * card['accuracy']:.2f} %, corrupted (severity 5) {100 * corrupted:.2f} %")
    name = variant(values.get("recipe", "standard"), values.get("federation", "none")) or "auto"
    out.print(f"weights: {path} (use them with weights={path if 'out' in values else name})", soft_wrap=True)


@data_app.callback()
def data(context: typer.Context) -> None:
    """List data sets and whether they are here."""
    if context.invoked_subcommand is None:
        _list("data sets", [(entry.name, entry.about, entry.state) for entry in catalogue.datasets()])


@data_app.command("list")
def data_list() -> None:
    """List data sets and whether they are here."""
    _list("data sets", [(entry.name, entry.about, entry.state) for entry in catalogue.datasets()])


@data_app.command("fetch")
def data_fetch(
    name: str,
    folder: Annotated[Path | None, typer.Option(help="Take the files from this folder.")] = None,
    severity: Annotated[int, typer.Option(help="Severity of a corrupted set, 1 to 5.")] = 5,
) -> None:
    """Get a data set (or make a corrupted one) and keep it in the cache."""
    for note in catalogue.fetch(name, folder, severity):
        out.print(note, soft_wrap=True)
    out.print(f"{name} is ready")


@data_app.command("check")
def data_check(
    name: Annotated[str | None, typer.Argument()] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged files, to be made again.")] = False,
) -> None:
    """Compare every cached array of images and labels with its checksum."""
    found = catalogue.check(name, repair)
    for path, state in found:
        out.print(f"{state:10} {path}", soft_wrap=True)
    bad = [state for _, state in found if state in ("damaged", "incomplete")]
    if bad:
        raise UserError(f"{len(bad)} of {len(found)} files are bad: run `fedctta data check --repair`")
    out.print(f"{len(found)} files checked" if found else "nothing is cached yet")


def _version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated continual test-time adaptation: run, compare and report client and server methods."""


def main() -> None:
    """Run the command; a failure the user can mend is one line and exit code 2."""
    exit_when_terminated()
    try:
        app()
    except UserError as error:
        err.print(f"fedctta: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        err.print(f"fedctta: {where}{reason(error)}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
