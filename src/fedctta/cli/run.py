"""`fedctta run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedctta.cli.console import err, out
from fedctta.cli.refusal import refuse_options
from fedctta.errors import UserError
from fedctta.files import require_writable
from fedctta.keys import DEFAULTS

Words = Annotated[list[str] | None, typer.Argument(metavar="[PRESET] KEY=VALUE ...", show_default=False)]


def run(
    words: Words = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Folder for report and runs.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished runs and continue an interrupted one.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Runs played at once, each in a process of its own.")] = 1,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Run the model as it is, too (the row No-Adapt).")
    ] = True,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Draw figures and write the page and its tables.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run experiments. Several values under one key (seed=0,1,2) are all run, on the same streams.

    Example: fedctta run dataset=shapes-c aggregator=local,fedavg,fedctta,oracle seed=0,1,2
    """
    from fedctta.machine import keep_freed_memory
    from fedctta.report import print_table
    from fedctta.runs.experiment import read_experiments
    from fedctta.runs.experiment import run as run_experiments
    from fedctta.runs.output_folder import find_free_folder
    from fedctta.runs.settings import parse_words

    words = list(words or [])
    preset = words.pop(0) if words and "=" not in words[0] else None
    values = parse_words(words)
    refuse_options(values, run_experiments)
    if json_file is not None:
        if json_file.is_dir():
            raise UserError(
                f"--json {json_file} is a folder: name a file, for example --json {json_file / 'runs.json'}"
            )
        require_writable(json_file.parent)
    name = Path(preset).stem if preset else "-".join(values.get("dataset", [DEFAULTS["dataset"]]))
    if folder is None:
        folder = Path("runs") / name
        if not resume:
            folder = find_free_folder(folder, read_experiments(preset, values))
    keep_freed_memory()
    try:
        result = run_experiments(
            preset,
            out=folder,
            resume=resume,
            jobs=jobs,
            baseline=baseline,
            progress=not quiet,
            console=err,
            **values,
        )
    except KeyboardInterrupt:
        err.print("stopped; the same command with --resume continues where it was")
        raise typer.Exit(130) from None
    print_table(result.table(), out)
    for sentence in result.health():
        out.print(sentence, style="dim", markup=False, highlight=False, soft_wrap=True)
    for note in dict.fromkeys(note for record in result for note in record.settings["notes"]):
        out.print(f"note: {note}", style="dim", soft_wrap=True)
    if json_file is not None:
        result.write_json(json_file)
    page = result.write_report(folder) if report else None
    if page is None:
        out.print(f"runs: {folder / 'runs'}; --resume without --no-report writes the report", soft_wrap=True)
    else:
        out.print(f"report: {page}", soft_wrap=True)
