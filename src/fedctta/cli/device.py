"""The `fedctta device` command: parse, call, print."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedctta.errors import UserError
from fedctta.keys import UNWAITING, Keys


def device(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="ADAPTER.PARAMETER=VALUE ...", show_default=False)
    ] = None,
    *,
    model: Annotated[str, typer.Option(help="Name of a model, or package.module:factory.")],
    data: Annotated[str, typer.Option(help="folder:PATH, watch:PATH, stdin, python:module:name, stream:dataset=...")],
    state: Annotated[Path, typer.Option(help="Folder of what the device keeps over restarts.")],
    weights: Annotated[
        str, typer.Option(help="A file, the data set they were trained on, or (own models) random.")
    ] = "auto",
    adapter: Annotated[
        str | None,
        typer.Option(
            help="What it does with a batch; usually recall, none without BatchNorm, and bn with --lockstep.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images a batch.")] = 10,
    patience: Annotated[float, typer.Option(help="Seconds after which watch: gives a smaller batch.")] = 1.0,
    pace: Annotated[float, typer.Option(help="Seconds from one batch to the next; 0: as fast as it can.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="File .jsonl or folder .parquet; otherwise predictions.jsonl in --state.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the device is called in its fleet.")] = "device-0",
    socket: Annotated[
        Path | None, typer.Option(help="Where the ClientApp finds the device; without it the device works alone.")
    ] = None,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="Predict each batch after the server's answer.")] = False,
    min_batch: Annotated[int, typer.Option(help="Share nothing learnt from a smaller batch.")] = 2,
    save_every: Annotated[int, typer.Option(help="Batches between two saves; 0: as often as takes 1 % of time.")] = 0,
    classes: Annotated[str, typer.Option(help="Names of the classes: a,b,c or a file with one a line.")] = "",
    source_images: Annotated[
        Path | None, typer.Option(help="Folder of clean images, for the adapters that need some.")
    ] = None,
    compute: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    guard: Annotated[
        Literal["reset", "freeze", "off"] | None,
        typer.Option(help="What an alarm does; usually reset, and off with --lockstep.", show_default=False),
    ] = None,
    check: Annotated[int, typer.Option(help="Batches between checks of the model's health; 0: none.")] = 10,
    window: Annotated[int, typer.Option(help="Last images, among which batches that are too small are seen.")] = 16,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Budget of all that is ever sent of one image: noise from the system (recall, bn).", show_default=False
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of that budget.")] = 1e-5,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Epsilon after which nothing more is sent, for a scene that is in every upload (bn).",
            show_default=False,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings in the log.")] = False,
) -> None:
    """Predict and adapt on this machine: alone, or as one device of a fleet. It goes on where it was stopped.

    Example: fedctta device --model resnet8 --weights cifar10 --data watch:camera --state here recall.domains=64
    """
    from fedctta.fleet.device.start import Settings, run_device

    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    run_device(
        Settings(
            model,
            data,
            state,
            weights,
            adapter,
            read_parameters(adapter or (Keys.adapter if lockstep else UNWAITING), words or []),
            batch,
            patience,
            pace,
            out,
            name,
            socket,
            lockstep,
            min_batch,
            save_every,
            classes,
            source_images,
            compute,
            guard,
            check,
            window,
            epsilon,
            delta,
            budget,
        )
    )


def read_parameters(adapter: str, words: list[str]) -> dict[str, str]:
    """Read `adapter.parameter=value` words.

    >>> read_parameters("bn", ["bn.momentum=0.1"])
    {'momentum': '0.1'}
    """
    parameters = {}
    for word in words:
        key, equals, value = word.partition("=")
        method, dot, parameter = key.partition(".")
        if not equals or not dot:
            raise UserError(f"cannot read {word!r}: write {adapter}.parameter=value")
        if method != adapter:
            raise UserError(f"{key} has no effect: the adapter is {adapter}; drop it, or use --adapter {method}")
        if parameter in parameters:
            raise UserError(f"{key} is given twice: drop one of them")
        parameters[parameter] = value
    return parameters
