"""The `fedctta` command: parse, call, print. One command per file; what a command needs is loaded when it is called."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedctta import __version__
from fedctta.cli import bench, data, doctor, keys, methods, pretrain, reproduce, run
from fedctta.cli.console import err, out
from fedctta.cli.device import device
from fedctta.cli.fleet import fleet_app
from fedctta.cli.refusal import TakesWords
from fedctta.errors import NoRoom, UserError, reason
from fedctta.files import FULL, exit_when_terminated

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated continual test-time adaptation: run, compare and report client and server methods.",
)
app.add_typer(data.data_app, name="data")
app.add_typer(fleet_app, name="fleet")
app.command()(device)
app.command(cls=keys.ListsKeys)(run.run)
app.command(cls=TakesWords)(reproduce.reproduce)
app.command()(bench.bench)
app.command()(methods.methods)
app.command()(keys.keys)
app.command(cls=TakesWords)(pretrain.pretrain)
app.command()(doctor.doctor)


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
    """Run the command; a failure the user can mend is one line and exit code 2, or 75 if a disk is full."""
    exit_when_terminated()
    try:
        app()
    except UserError as error:
        err.print(f"fedctta: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        err.print(f"fedctta: {where}{reason(error)}", style="red", markup=False, soft_wrap=True)
        sys.exit(NoRoom.code if error.errno in FULL else UserError.code)
