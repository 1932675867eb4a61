"""`fedctta data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedctta.cli.console import out, print_list
from fedctta.errors import UserError

data_app = typer.Typer(invoke_without_command=True, help="List, fetch and check data sets.")


@data_app.callback()
def data(context: typer.Context) -> None:
    """List data sets and whether they are here."""
    if context.invoked_subcommand is None:
        data_list()


@data_app.command("list")
def data_list() -> None:
    """List data sets and whether they are here."""
    from fedctta.data import catalogue

    print_list("data sets", [(entry.name, entry.about, entry.state) for entry in catalogue.datasets()])


@data_app.command("fetch")
def data_fetch(
    name: str,
    folder: Annotated[Path | None, typer.Option(help="Take the files from this folder.")] = None,
    severity: Annotated[int, typer.Option(help="Severity of a corrupted set, 1 to 5.")] = 5,
) -> None:
    """Get a data set (or make a corrupted one) and keep it in the cache."""
    from fedctta.data import catalogue

    for note in catalogue.fetch(name, folder, severity):
        out.print(note, soft_wrap=True)
    out.print(f"{name} is ready")


@data_app.command("check")
def data_check(
    name: Annotated[str | None, typer.Argument()] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged files, to be made again.")] = False,
) -> None:
    """Compare every cached array of images and labels with its checksum."""
    from fedctta.data import catalogue

    found = catalogue.check(name, repair)
    for path, state in found:
        out.print(f"{state:10} {path}", soft_wrap=True)
    bad = [state for _, state in found if state in ("damaged", "incomplete")]
    if bad:
        raise UserError(f"{len(bad)} of {len(found)} files are bad: run `fedctta data check --repair`")
    out.print(f"{len(found)} files checked" if found else "nothing is cached yet")
